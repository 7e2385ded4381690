"""Writes the type stubs of the package's door and of its objectives, which are found by looking.

Editors and type checkers read them; at run time nobody does.
"""

from __future__ import annotations

from pathlib import Path

import rlzoo
from rlzoo.algorithms import discover

HEAD = '"""Written by `python docs/generate.py`; the names are found by looking."""\n\n'


def _imports(names: dict[str, str]) -> str:
    return "".join(f"from {home} import {n} as {n}\n" for n, home in sorted(names.items()))


def algorithms_stub() -> str:
    """Return the stub of `rlzoo.algorithms`."""
    names = {name: cls.__module__ for name, cls in discover().items()}
    names |= dict.fromkeys(("Algorithm", "Surrogate"), "rlzoo.algorithms.base")
    listed = ", ".join(f'"{name}"' for name in (*sorted(names), "discover"))
    return (
        f"{HEAD}{_imports(names)}\n__all__ = [{listed}]\n\n"
        "def discover() -> dict[str, type[Algorithm]]: ...\n"
    )


def door_stub() -> str:
    """Return the stub of `rlzoo`."""
    names = {name: module for module, found in rlzoo.DOOR.items() for name in found}
    names |= dict.fromkeys((*discover(), "Algorithm", "Surrogate"), "rlzoo.algorithms")
    return f"{HEAD}{_imports(names)}\n__version__: str\nDOOR: dict[str, tuple[str, ...]]\n"


def stubs() -> dict[Path, str]:
    """Return the text of every stub, by file."""
    package = Path(rlzoo.__file__).parent
    return {
        package / "__init__.pyi": door_stub(),
        package / "algorithms" / "__init__.pyi": algorithms_stub(),
    }
