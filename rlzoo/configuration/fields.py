"""A constructor whose arguments are declared once, as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from jsonargparse import lazy_instance

from rlzoo.configuration.yaml_text import keep_hashes

keep_hashes()  # whatever is parsed into fields may hold such text

Given = ParamSpec("Given")
Self = TypeVar("Self")
Settings = TypeVar("Settings")


def takes_fields_of(
    declaration: Callable[Given, Settings],
) -> Callable[[Callable[[Self, Settings], None]], Callable[Concatenate[Self, Given], None]]:
    """Turn ``__init__(self, settings)`` into one that takes the fields of the settings.

    Type checkers see the fields as its parameters, and so does jsonargparse, which makes options of
    them and shows their defaults and the dataclass's docstring as their help.

    Args:
        declaration: A dataclass.

    Returns:
        A decorator.
    """

    def decorate(
        start: Callable[[Self, Settings], None],
    ) -> Callable[Concatenate[Self, Given], None]:
        def __init__(self: Self, *args: Given.args, **kwargs: Given.kwargs) -> None:
            start(self, declaration(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        __init__.__signature__ = inspect.Signature([own, *_parameters(declaration)])  # type: ignore[attr-defined]
        __init__.__doc__ = declaration.__doc__
        return cast(Callable[Concatenate[Self, Given], None], __init__)

    return decorate


def _parameters(declaration: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(declaration)
    found = []
    for field in dataclasses.fields(declaration):
        default: Any = inspect.Parameter.empty
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            make: Any = field.default_factory
            plain = not inspect.isclass(make) or dataclasses.is_dataclass(make)
            # A lazy instance is shown by jsonargparse as a class path; an instance could not be.
            default = make() if plain or make in (list, tuple, dict) else lazy_instance(make)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append(
            inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name])
        )
    return found
