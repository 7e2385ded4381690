"""The runner: it asks every reward about every answer, and adds the rewards up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

from rlzoo.errors import UserError
from rlzoo.rewards.base import Reward, Sample, require_number
from rlzoo.rewards.contract import Failure, Outcome, attempt
from rlzoo.rewards.pool import WorkerPool, default_workers

logger = logging.getLogger(__name__)


class RewardRunner:
    """Evaluates rewards and enforces their contract.

    Rewards without a timeout are called here, in this thread; those with one in worker processes
    that are started when first needed and live until ``close`` or the end of the interpreter. A
    runner may be pickled: its workers stay behind.

    Args:
        rewards: The K rewards.
        max_workers: Worker processes per reward that has a timeout; the CPUs, at most 4, if None.
        max_seconds: Longest that one reward may take over one batch; rows it has not judged by
            then abstain. None allows every row its whole timeout (see ``WorkerPool``).

    Raises:
        UserError: If there is no reward, two have one name, or no weight is other than 0.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        max_workers: int | None = None,
        max_seconds: float | None = None,
    ) -> None:
        self.rewards = list(rewards)
        if not self.rewards:
            raise UserError("rewards: the list is empty; name at least one reward")
        name, count = Counter(self.names).most_common(1)[0]
        if count > 1:
            raise UserError(f"rewards: {count} are named '{name}'; give each a name of its own")
        if not any(self.weights):
            raise UserError("rewards: every weight is 0; give one reward another weight")
        if max_workers is not None and max_workers < 1:
            raise UserError(f"max_workers={max_workers}: must be at least 1")
        if max_seconds is not None and require_number("max_seconds", max_seconds) <= 0:
            raise UserError(f"max_seconds={max_seconds}: must be above 0")
        self.max_workers = max_workers or default_workers()
        self.max_seconds = max_seconds
        self._pools: dict[str, WorkerPool] = {}
        self._prepared = False

    @property
    def names(self) -> list[str]:
        """The K names."""
        return [reward.name for reward in self.rewards]

    @property
    def weights(self) -> list[float]:
        """The K weights."""
        return [reward.weight for reward in self.rewards]

    def evaluate(self, samples: Sequence[Sample]) -> list[list[float | None]]:
        """Judge N answers with K rewards.

        Args:
            samples: N answers.

        Returns:
            N rows of K rewards in the order of the samples; None where a reward abstains.

        Raises:
            UserError: If a reward fails with ``on_error: raise`` or breaks the contract.
        """
        if not samples:
            return []
        columns = [self._evaluate(reward, samples) for reward in self.rewards]
        return [list(row) for row in zip(*columns, strict=True)]

    def combine(self, values: Sequence[Sequence[float | None]]) -> list[float | None]:
        """Return ``combine(values, self.weights)``."""
        return combine(values, self.weights)

    def close(self) -> None:
        """Stop the worker processes."""
        for pool in self._pools.values():
            pool.close()
        self._pools = {}

    def __enter__(self) -> RewardRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": {}, "_prepared": False}

    def _evaluate(self, reward: Reward, samples: Sequence[Sample]) -> list[float | None]:
        chunks = [samples] if reward.batched else [[sample] for sample in samples]
        rewards: list[float | None] = []
        with closing(self._outcomes(reward, chunks)) as outcomes:
            for chunk, outcome in zip(chunks, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    _abstain_or_raise(reward, chunk, outcome)
                    rewards.extend([None] * len(chunk))
                else:
                    rewards.extend(outcome)
        return rewards

    def _outcomes(
        self, reward: Reward, chunks: Sequence[Sequence[Sample]]
    ) -> Generator[Outcome, None, None]:
        if reward.timeout is None:
            if not self._prepared:
                for each in self.rewards:
                    if each.timeout is None:
                        each.prepare()
                self._prepared = True
            return (attempt(reward, chunk) for chunk in chunks)
        if reward.name not in self._pools:
            self._pools[reward.name] = WorkerPool(reward, self.max_workers, self.max_seconds)
        return self._pools[reward.name].run(chunks)


def _abstain_or_raise(reward: Reward, chunk: Sequence[Sample], failure: Failure) -> None:
    rows = [sample.row for sample in chunk]
    where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    if failure.error is not None and reward.on_error == "raise":
        raise UserError(
            f"reward '{reward.name}' failed on {where}: {failure.reason}; "
            "fix the reward, or set its on_error to abstain"
        ) from failure.error
    logger.warning("reward '%s' abstains on %s: %s", reward.name, where, failure.reason)


def combine(
    values: Sequence[Sequence[float | None]], weights: Sequence[float]
) -> list[float | None]:
    """Return the weighted sum of the rewards that did not abstain.

    ``total_i = sum_k weight_k * value_ik`` over the k with a value and a weight other than 0; None
    if there is no such k, so that a reward which is only logged cannot turn a row on which all
    others abstained into one with reward 0.

    Args:
        values: N rows of K rewards, None where a reward abstained.
        weights: K weights.

    Returns:
        N totals, None where every reward abstained.
    """
    totals: list[float | None] = []
    for row in values:
        terms = [
            weight * value
            for value, weight in zip(row, weights, strict=True)
            if value is not None and weight != 0
        ]
        totals.append(sum(terms) if terms else None)
    return totals
