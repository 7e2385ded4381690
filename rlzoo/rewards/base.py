"""The base of rewards: a plain class that judges answers, one row at a time."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any, Literal, get_args

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError, nearest

OnError = Literal["raise", "abstain"]


@dataclass(frozen=True)
class Sample:
    """One answer to be judged; picklable, no tensors.

    Example:
        ``Sample(row=0, prompt="12+30=", completion="42", target="42", terminated=True,
        num_tokens=3)``

    Attributes:
        row: Index in the iteration, for error messages.
        prompt: What the model was asked, as text.
        completion: What it answered, special tokens left out; empty if it stopped at once.
        target: The reference answer.
        terminated: False where the answer was cut at the longest length.
        num_tokens: Response tokens, EOS included.
        columns: The other columns of the dataset row.
    """

    row: int
    prompt: str
    completion: str
    target: str
    terminated: bool
    num_tokens: int
    columns: Mapping[str, Any] = field(default_factory=dict)


class Reward(Recorded, ABC):
    """Judges answers; subclass it and write ``reward``.

    A reward must be picklable if it has a timeout. One that has to see the whole batch at once
    overrides ``reward_all``.

    Args:
        weight: Factor in the sum of all rewards; 0 only logs this reward.
        timeout: Seconds one row may take (the whole batch, for a reward that overrides
            ``reward_all``). Rows then run in worker processes, one that is late is killed and
            abstains. None runs in the training process, without a limit.
        on_error: What an exception does: ``raise`` stops training, ``abstain`` leaves the row out
            and logs a warning.
        name: Logged as ``reward/<name>``; the class name in snake case by default.
    """

    def __init__(
        self,
        weight: float = 1.0,
        timeout: float | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> None:
        self._name = name
        if name is not None and not re.fullmatch(r"[\w.-]+", name):
            raise UserError(f"reward name '{name}': use letters, digits, '_', '-' and '.'")
        self.weight = require_number(f"{self.name}.weight", weight)
        self.timeout = timeout
        if timeout is not None and require_number(f"{self.name}.timeout", timeout) <= 0:
            raise UserError(f"{self.name}.timeout={timeout}: must be above 0, or null for no limit")
        if on_error not in get_args(OnError):
            hint = nearest(str(on_error), list(get_args(OnError)))
            raise UserError(f"{self.name}.on_error='{on_error}': {hint}")
        self.on_error = on_error

    @property
    def name(self) -> str:
        """The name under which the reward is logged."""
        return self._name or self._default_name()

    def _default_name(self) -> str:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__)
        return words.lower()

    @property
    def batched(self) -> bool:
        """Whether one call judges the whole batch."""
        return type(self).reward_all is not Reward.reward_all

    def prepare(self) -> None:
        """Import what ``reward`` needs; called before the first row, outside its timeout."""

    @abstractmethod
    def reward(self, sample: Sample) -> float | None:
        """Judge one answer.

        Args:
            sample: The answer with its prompt and reference.

        Returns:
            A finite number, or None to abstain. A row on which all rewards abstain leaves the loss.
        """

    def reward_all(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        """Judge a batch; override it only if rows must be seen together.

        Args:
            samples: N answers.

        Returns:
            N rewards, in the order of the samples.
        """
        return [self.reward(sample) for sample in samples]


def require_number(field: str, value: Any) -> float:
    """Return a finite number as it is, or refuse it.

    Args:
        field: What the user calls it.
        value: What the user wrote.

    Returns:
        The value.

    Raises:
        UserError: If it is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise UserError(f"{field}={value!r}: must be a finite number")
    return value  # type: ignore[return-value]


def as_reward(value: Any) -> float | None:
    """Turn what a reward returned for one row into a float.

    Args:
        value: None, a bool, a number, or a 0-d array or tensor.

    Returns:
        A finite float, or None where the reward abstains.

    Raises:
        ValueError: If it is anything else; the message says what it was.
    """
    if value is not None and hasattr(value, "item") and getattr(value, "shape", ()) == ():
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, Real):
        raise ValueError(f"returned a {type(value).__name__}")
    try:
        reward = float(value)
    except OverflowError:
        reward = float("inf")
    if not isfinite(reward):
        raise ValueError(f"returned {reward}")
    return reward
