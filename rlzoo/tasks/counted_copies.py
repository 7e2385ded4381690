"""The task of writing a word many times and counting: short prompts, long answers."""

from __future__ import annotations

import random

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, require_integer
from rlzoo.tasks.procedural import ProceduralTask

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class CountedCopies(ProceduralTask):
    """Write a word n times, each copy behind its number: ``C3xyz=`` asks for ``1xyz2xyz3xyz``.

    The word has three different letters, so that every character follows from those before it:
    what makes an answer hard is its length, up to ``5 * max_copies`` characters.

    Args:
        min_copies: Fewest copies.
        max_copies: Most copies.
    """

    def __init__(self, min_copies: int = 2, max_copies: int = 48) -> None:
        self.min_copies = require_integer("CountedCopies.min_copies", min_copies, 1)
        self.max_copies = require_integer("CountedCopies.max_copies", max_copies, 1)
        if max_copies < min_copies:
            raise UserError(
                f"CountedCopies.max_copies={max_copies}: must be at least min_copies={min_copies}"
            )

    @property
    def alphabet(self) -> str:
        """Digits, letters, ``C`` and ``=``."""
        return "0123456789" + LETTERS + "C="

    def draw(self, rng: random.Random) -> Example:
        """Draw the number of copies and the word."""
        copies, word = rng.randint(self.min_copies, self.max_copies), rng.sample(LETTERS, 3)
        text = "".join(word)
        answer = "".join(f"{number}{text}" for number in range(1, copies + 1))
        return Example(prompt=f"C{copies}{text}=", target=answer)
