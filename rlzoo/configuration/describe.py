"""From objects to the configuration that would make them again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rlzoo.configuration.recorded import Recorded


class Undescribable(ValueError):
    """A value that no configuration can carry, such as a lambda."""


def describe(value: Any) -> Any:
    """Return a value as YAML has it: class paths and their arguments in an object's place.

    Args:
        value: What a configuration may hold: numbers, text, lists and mappings of such, settings
            (dataclasses), objects derived from `Recorded`, classes, functions of a module, and
            ``functools.partial`` of a class.

    Returns:
        Plain values; ``jsonargparse`` makes equal objects of them.

    Raises:
        Undescribable: If it is something else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return _object(value)


def _object(value: Any) -> Any:
    if isinstance(value, Recorded):
        return _spec(type(value), value.given())
    if isinstance(value, type):
        return _spec(value, {})
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: describe(getattr(value, field.name)) for field in fields}
    if isinstance(value, functools.partial) and isinstance(value.func, type) and not value.args:
        return _spec(value.func, value.keywords)
    if inspect.isfunction(value) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    raise Undescribable(f"{value!r} cannot be written into a configuration")


def _spec(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"class_path": class_path(cls)}
    if arguments:
        spec["init_args"] = describe(arguments)
    return spec


def class_path(cls: type) -> str:
    """Return where a class is imported from: the shortest package that has it under its name."""
    parts = cls.__module__.split(".")
    for end in range(1, len(parts)):
        package = sys.modules.get(".".join(parts[:end]))
        if getattr(package, cls.__name__, None) is cls:
            return ".".join([*parts[:end], cls.__name__])
    return f"{cls.__module__}.{cls.__qualname__}"
