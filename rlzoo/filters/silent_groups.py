"""A filter that keeps groups without signal out of the update's passes."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.advantages import Outcome
from rlzoo.filters.base import Filter, Iteration
from rlzoo.types import Rewards, Rollouts


class SkipSilentGroups(Filter):
    """Skips groups whose answers all earned the same, and with them their KL term.

    Their advantages are 0. They still count in the denominators, so the others weigh the same with
    and without this filter. What is saved is the time of their passes.
    """

    skips: ClassVar[bool] = True

    def __call__(
        self, rollouts: Rollouts, rewards: Rewards, iteration: Iteration
    ) -> tuple[Rollouts, Rewards]:
        """Skip the rows that the run's estimator calls silent."""
        outcome = Outcome.of(rollouts, rewards)
        signal, _, _ = iteration.estimator.rows_with_signal(outcome)
        return rollouts.skip(~signal), rewards
