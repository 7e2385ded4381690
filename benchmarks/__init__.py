"""Programs that measure; they are not part of the package."""
