"""GEPO: an answer's likelihood against what its group expects, not against its own past."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Unit
from rlzoo.ops import Aggregation, bounded_exp, masked_mean
from rlzoo.types import PolicyBatch


class GEPO(Algorithm):
    """Group expectation policy optimization: one denominator for all answers to a prompt.

    ``J = (1/N) sum_i min( w_i A_i, clip(w_i, 1 - clip_low, 1 + clip_high) A_i )``,
    ``w_i = p_i / expected``, ``expected = sum_j q_j^2 / sum_j q_j`` over the group,
    ``p_i = exp( (1/|y_i|) sum_t log_probs_it )``, q_i the same of old_log_probs.

    Source: arXiv 2508.17850. Against GSPO: a stale, unlikely q_i cannot make the ratio explode, so
    samplers may lag far behind; but w_i is not 1 on-policy, and unlikely answers weigh less.
    Elsewhere: the authors' code takes the whole micro-batch for the group.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"
    needs: ClassVar[frozenset[str]] = frozenset({"group_ids"})
    unit: ClassVar[Unit] = "group"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        super().__init__(clip_low, clip_high)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return w_i, (N, 1)."""
        assert batch.group_ids is not None
        log_p, log_q = (masked_mean(x, batch.mask) for x in (batch.log_probs, batch.old_log_probs))
        live = batch.mask.any(-1, keepdim=True)
        together = (batch.group_ids[:, None] == batch.group_ids) & live.T
        of_group = torch.where(together, log_q.T, -torch.inf)
        expected = (2 * of_group).logsumexp(-1, True) - of_group.logsumexp(-1, True)
        return bounded_exp(log_p - torch.where(live, expected, 0.0))
