"""The task of adding and subtracting a few numbers, with solved examples if wanted."""

from __future__ import annotations

import random

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, require_integer
from rlzoo.tasks.procedural import TRIES, ProceduralTask, draw_number


class ChainSum(ProceduralTask):
    r"""Add and subtract: ``4 - 7 =`` asks for ``-3``.

    With ``few_shot=2`` the prompt is ``8 + 1 = 9\n6 - 2 = 4\n4 - 7 =``, which a pretrained model
    that was never taught to chat goes on with as `` -3\n``; judge it with ``FirstLineMatch``. The
    solved examples are the same in every prompt, for every seed, and are never asked.

    Args:
        min_terms: Fewest numbers of a question.
        max_terms: Most numbers of a question.
        digits: Digits of each number.
        few_shot: Solved examples ahead of the question.
    """

    def __init__(
        self, min_terms: int = 2, max_terms: int = 2, digits: int = 1, few_shot: int = 0
    ) -> None:
        self.min_terms = require_integer("ChainSum.min_terms", min_terms, 2)
        self.max_terms = require_integer("ChainSum.max_terms", max_terms, 2)
        self.digits = require_integer("ChainSum.digits", digits, 1)
        self.few_shot = require_integer("ChainSum.few_shot", few_shot, 0)
        if max_terms < min_terms:
            raise UserError(
                f"ChainSum.max_terms={max_terms}: must be at least min_terms={min_terms}"
            )
        if few_shot > 32:
            raise UserError(f"ChainSum.few_shot={few_shot}: must be at most 32")
        self._solved = self._solve()

    @property
    def alphabet(self) -> str:
        """Digits, ``+``, ``-``, ``=``, the space and, with solved examples, the newline."""
        return "0123456789+-= " + ("\n" if self.few_shot else "")

    def draw(self, rng: random.Random) -> Example:
        """Draw the numbers and the signs."""
        expression, value = self._expression(rng)
        lines = [f"{solved} = {result}\n" for solved, result in self._solved.items()]
        columns = {"expression": expression}
        return Example("".join(lines) + f"{expression} =", target=str(value), columns=columns)

    def accepts(self, example: Example) -> bool:
        """Refuse a question that the prompt has solved."""
        return example.columns["expression"] not in self._solved

    def demonstration(self, example: Example, noise: float, rng: random.Random) -> str:
        """Return the answer with noise; in few-shot form if the prompt has solved examples."""
        text = super().demonstration(example, noise, rng)
        return f" {text}\n" if self.few_shot else text

    def _expression(self, rng: random.Random) -> tuple[str, int]:
        value = draw_number(rng, self.digits)
        expression = str(value)
        for _ in range(rng.randint(self.min_terms, self.max_terms) - 1):
            sign, term = rng.choice("+-"), draw_number(rng, self.digits)
            expression += f" {sign} {term}"
            value += term if sign == "+" else -term
        return expression, value

    def _solve(self) -> dict[str, int]:
        rng = random.Random("solved examples")
        solved: dict[str, int] = {}
        for _ in range(TRIES):
            if len(solved) == self.few_shot:
                break
            expression, value = self._expression(rng)
            solved[expression] = value
        return solved
