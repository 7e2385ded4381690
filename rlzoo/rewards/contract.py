"""The reward contract, enforced in one place: length, types, finiteness, who failed where."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlzoo.errors import UserError, one_line
from rlzoo.rewards.base import Reward, Sample, as_reward


@dataclass(frozen=True)
class Failure:
    """An exception that a reward raised, or the limit it ran into.

    Attributes:
        reason: One line for the user.
        error: The exception, to chain; None where a limit ended the row.
    """

    reason: str
    error: Exception | None = None


Outcome = list[float | None] | Failure


def attempt(reward: Reward, samples: Sequence[Sample]) -> Outcome:
    """Judge samples with one call of the reward.

    Args:
        reward: The reward.
        samples: One sample, or the whole batch if the reward is batched.

    Returns:
        A reward per sample, or the failure.

    Raises:
        UserError: If the reward itself breaks the contract or is misconfigured.
    """
    try:
        if reward.batched:
            returned: Any = reward.reward_all(samples)
        else:
            returned = [reward.reward(sample) for sample in samples]
    except UserError:
        raise
    except Exception as error:
        return Failure(f"{type(error).__name__}: {one_line(error, 200)}", error)
    return check(reward, samples, returned)


def check(reward: Reward, samples: Sequence[Sample], returned: Any) -> list[float | None]:
    """Check what a reward returned against the contract.

    Args:
        reward: The reward, for messages.
        samples: What it was given.
        returned: What came back.

    Returns:
        One finite float or None per sample.

    Raises:
        UserError: If the length is wrong, or a reward is not a finite number or None.
    """
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        raise UserError(
            f"reward '{reward.name}' returned a {type(returned).__name__}; "
            f"return a list of {len(samples)} scores, one per answer"
        )
    if len(returned) != len(samples):
        raise UserError(
            f"reward '{reward.name}': expected {len(samples)} scores, got {len(returned)}; "
            "return one per answer, None to abstain"
        )
    rewards = []
    for sample, value in zip(samples, returned, strict=True):
        try:
            rewards.append(as_reward(value))
        except ValueError as error:
            raise UserError(
                f"reward '{reward.name}' {error} for row {sample.row}; "
                "return a finite number, or None to abstain"
            ) from None
    return rewards


def portable(failure: Failure) -> Failure:
    """Make a failure fit to cross a process boundary, its traceback included.

    Args:
        failure: What happened in a worker.

    Returns:
        A failure that can be pickled and whose error shows the worker's traceback as its cause.
    """
    if failure.error is None:
        return failure
    text = "".join(traceback.format_exception(failure.error))
    try:
        pickle.loads(pickle.dumps(failure.error))
    except Exception:
        return Failure(failure.reason, RuntimeError(text))
    return Failure(failure.reason, _Traced(failure.error, text))


class _Traced(Exception):
    """Carries an exception and its traceback over a pipe; pickling drops the latter."""

    def __init__(self, error: Exception, text: str) -> None:
        super().__init__(error, text)
        self.error, self.text = error, text

    def restore(self) -> Exception:
        self.error.__cause__ = RuntimeError("in a reward worker:\n" + self.text)
        return self.error


def restored(failure: Failure) -> Failure:
    """Undo ``portable`` on the other side.

    Args:
        failure: What came over the pipe.

    Returns:
        The failure with the original exception.
    """
    if isinstance(failure.error, _Traced):
        return Failure(failure.reason, failure.error.restore())
    return failure
