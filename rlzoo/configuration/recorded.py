"""Objects that remember the arguments they were made with."""

from __future__ import annotations

import inspect
from typing import Any

from typing_extensions import Self


class Recorded:
    """Base of everything that a configuration may name: `describe` turns it back into one.

    The arguments are kept when the object is made, before any constructor runs, so that a subclass
    has nothing to do for it and may store them under whatever name it likes.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object and remember what it is made of."""
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments")  # object would let them pass
        self = super().__new__(cls)
        # Torch's modules refuse attributes before their own constructor has run.
        object.__setattr__(self, "_made_with", (args, kwargs))
        return self

    def given(self) -> dict[str, Any]:
        """Return the arguments that were given, by the names of the constructor's parameters."""
        args, kwargs = self._made_with
        bound = inspect.signature(type(self)).bind(*args, **kwargs)
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return found
