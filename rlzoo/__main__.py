"""The entry point: the overview at once, all else after its libraries are loaded."""

from __future__ import annotations

import sys

from rlzoo.cli.overview import answered


def main() -> None:
    """Run the command line."""
    if not answered(sys.argv[1:]):
        from rlzoo.cli.main import main as run

        run()


if __name__ == "__main__":
    main()
