"""The objectives of the zoo, one file each, found by discovery."""

from __future__ import annotations

import importlib
import pkgutil

from rlzoo.algorithms.base import Algorithm, Surrogate


def discover() -> dict[str, type[Algorithm]]:
    """Import every sibling module and return the objectives they define.

    Returns:
        Class name to class, sorted by name.
    """
    found: dict[str, type[Algorithm]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "base":
            continue
        contents = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for name, value in contents.items():
            if isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm:
                found[name] = value
    return dict(sorted(found.items()))


globals().update(discover())

__all__ = ["Algorithm", "Surrogate", "discover", *discover()]  # noqa: PLE0604
