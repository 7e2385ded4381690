"""Tasks that make their examples up."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, Split, Task
from rlzoo.tasks.splits import in_split, require_size

EVAL_SHARE = 0.2
TRIES = 1000


class ProceduralTask(Task):
    """Draws row i from a generator seeded with the seed, the split and i; override ``draw``.

    A fifth of all prompts, chosen by a hash of the prompt, is for evaluation and never trained on.
    A prompt may come twice in a split.
    """

    @abstractmethod
    def draw(self, rng: random.Random) -> Example:
        """Make one example up.

        Args:
            rng: The only source of randomness allowed.

        Returns:
            An example of either split.
        """

    def accepts(self, example: Example) -> bool:
        """Say whether an example may be used."""
        return True

    def examples(self, split: Split, size: int | None, seed: int) -> Sequence[Example]:
        """Return the first ``size`` examples of an endless list; see `Task.examples`."""
        size = require_size(size, split, type(self).__name__)
        return [self._example(split, seed, i) for i in range(size)]

    def _example(self, split: Split, seed: int, row: int) -> Example:
        rng = random.Random(f"{seed}/{split}/{row}")
        for _ in range(TRIES):
            example = self.draw(rng)
            if in_split(split, example.prompt, EVAL_SHARE) and self.accepts(example):
                return example
        raise UserError(
            f"{type(self).__name__}: no prompt for the {split} split in {TRIES} tries; "
            "there are too few different ones, so make the task larger"
        )


def draw_number(rng: random.Random, digits: int) -> int:
    """Draw a number of exactly that many digits; 0 has one.

    Args:
        rng: The source of randomness.
        digits: How many.

    Returns:
        The number.
    """
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
