"""The task of sorting digits."""

from __future__ import annotations

import random

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, require_integer
from rlzoo.tasks.procedural import ProceduralTask


class DigitSorting(ProceduralTask):
    """Write digits in ascending order: ``S31452=`` asks for ``12345``.

    Args:
        min_digits: Fewest digits of a question.
        max_digits: Most digits of a question.
    """

    def __init__(self, min_digits: int = 5, max_digits: int = 8) -> None:
        self.min_digits = require_integer("DigitSorting.min_digits", min_digits, 1)
        self.max_digits = require_integer("DigitSorting.max_digits", max_digits, 1)
        if max_digits < min_digits:
            raise UserError(
                f"DigitSorting.max_digits={max_digits}: must be at least min_digits={min_digits}"
            )

    @property
    def alphabet(self) -> str:
        """Digits, ``S`` and ``=``."""
        return "0123456789S="

    def draw(self, rng: random.Random) -> Example:
        """Draw the digits."""
        count = rng.randint(self.min_digits, self.max_digits)
        digits = [rng.choice("0123456789") for _ in range(count)]
        return Example(prompt=f"S{''.join(digits)}=", target="".join(sorted(digits)))
