"""Text in configurations that YAML would take for a comment."""

from __future__ import annotations

from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

_load = get_loader("yaml")


def load_text(text: str) -> Any:
    """Load YAML as jsonargparse does, but keep a line that begins with ``#`` as text.

    jsonargparse loads every text again, quoted or not, to find out what it may be; ``####`` would
    be a comment then, and nothing: a separator of answers or a Markdown heading would be lost.
    """
    found = _load(text)
    lone = text.strip().startswith("#") and "\n" not in text.strip()
    return text if found is None and lone else found


def keep_hashes() -> None:
    """Make jsonargparse load text so; doing it twice changes nothing."""
    set_loader("yaml", load_text, exceptions=(yaml.YAMLError,))
