"""The task of adding two numbers."""

from __future__ import annotations

import random

from rlzoo.tasks.base import Example, require_integer
from rlzoo.tasks.procedural import ProceduralTask, draw_number


class Addition(ProceduralTask):
    """Add two numbers: ``12+30=`` asks for ``42``.

    Args:
        digits: Digits of each number.
    """

    def __init__(self, digits: int = 2) -> None:
        self.digits = require_integer("Addition.digits", digits, 1)

    @property
    def alphabet(self) -> str:
        """Digits, ``+`` and ``=``."""
        return "0123456789+="

    def draw(self, rng: random.Random) -> Example:
        """Draw the numbers."""
        left, right = draw_number(rng, self.digits), draw_number(rng, self.digits)
        return Example(prompt=f"{left}+{right}=", target=str(left + right))
