"""The base of tasks: prompts with their reference answers."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError

Split = Literal["train", "eval"]
PromptText = str | tuple[Mapping[str, str], ...]

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"


@dataclass(frozen=True)
class Example:
    """One question with its reference answer.

    Example:
        ``Example(prompt="12+30=", target="42")`` or, as a chat,
        ``Example(prompt=({"role": "user", "content": "12+30?"},), target="42")``

    Attributes:
        prompt: Plain text, or chat messages with ``role`` and ``content``.
        target: The reference answer.
        columns: Whatever else rewards may ask for by name.
    """

    prompt: PromptText
    target: str
    columns: Mapping[str, Any] = field(default_factory=dict)


class Task(Recorded, ABC):
    """Gives the examples of a training and an evaluation split, which share no prompt."""

    @abstractmethod
    def examples(self, split: Split, size: int | None, seed: int) -> Sequence[Example]:
        """Return the examples of a split, the same ones for the same arguments.

        Args:
            split: ``train`` or ``eval``.
            size: How many; None for all there are.
            seed: Chooses among them.

        Returns:
            The examples.

        Raises:
            UserError: If the task does not have that many.
        """

    @property
    def alphabet(self) -> str:
        """The characters that prompts and reference answers may need."""
        return PRINTABLE

    def demonstration(self, example: Example, noise: float, rng: random.Random) -> str:
        """Return a text that a supervised cold start may imitate.

        Args:
            example: The question.
            noise: Probability that a character is replaced by a random one of the alphabet, so
                that the model learns the form but leaves something to learn from rewards.
            rng: Draws the noise.

        Returns:
            The reference answer, with noise.
        """
        if not 0 <= noise <= 1:
            raise UserError(f"noise={noise}: must be from 0 to 1")
        alphabet = self.alphabet
        return "".join(
            rng.choice(alphabet) if rng.random() < noise else character
            for character in example.target
        )


def require_integer(field: str, value: Any, at_least: int) -> int:
    """Return an integer as it is, or refuse it.

    Args:
        field: What the user calls it.
        value: What the user wrote.
        at_least: The least value allowed.

    Returns:
        The value.

    Raises:
        UserError: If it is no integer, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise UserError(f"{field}={value!r}: must be an integer of at least {at_least}")
    return value
