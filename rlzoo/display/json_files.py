"""Results as JSON files, and the numbers in them read back.

JSON has no NaN and no infinity. Python writes them all the same, as bare words that other readers
refuse. Here such a number is written as null, and a null among numbers is read as NaN.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Return a value with None in place of every number that is not finite.

    >>> plain({"loss": float("nan"), "steps": (1, float("inf"))})
    {'loss': None, 'steps': [1, None]}
    """
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(
    path: Path,
    value: Any,
    *,
    indent: int | None = 2,
    default: Callable[[Any], Any] | None = None,
) -> None:
    """Write a JSON file so that a reader finds all of it or the one before.

    Args:
        path: File to write or replace.
        value: Mappings, sequences, strings, numbers, booleans and None.
        indent: Spaces per level; None writes a single line.
        default: Turns a value of another type into one of these, such as ``str``.

    Raises:
        TypeError: If a value is of another type and there is no ``default``.
    """
    text = json.dumps(plain(value), indent=indent, allow_nan=False, default=default)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def append_json_line(path: Path, value: Any) -> None:
    """Add a value as one line to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain(value), allow_nan=False) + "\n")


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a JSON object; null reads as NaN, what is no number is left out.

    >>> numbers({"loss": None, "iteration": 3, "name": "GRPO"})
    {'loss': nan, 'iteration': 3.0}
    """
    read = {key: math.nan if value is None else value for key, value in values.items()}
    return {key: float(value) for key, value in read.items() if isinstance(value, int | float)}
