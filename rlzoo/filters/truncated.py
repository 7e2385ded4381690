"""A filter that keeps truncated answers out of the loss."""

from __future__ import annotations

from rlzoo.filters.base import Filter, Iteration
from rlzoo.types import Rewards, Rollouts


class MaskTruncated(Filter):
    """Keeps answers that were cut at ``max_new_tokens`` out of the loss and its denominators.

    Their rewards still count in their group's statistics.

    Source: DAPO, arXiv 2503.14476, section 3.4 (overlong filtering).
    """

    def __call__(
        self, rollouts: Rollouts, rewards: Rewards, iteration: Iteration
    ) -> tuple[Rollouts, Rewards]:
        """Mask the rows that did not end by themselves; see `Filter.__call__`."""
        return rollouts.leave_out(~rollouts.terminated), rewards
