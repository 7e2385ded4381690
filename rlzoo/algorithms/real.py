"""REAL: rewards as labels; the policy is the classifier."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate, Unit
from rlzoo.ops import Aggregation, masked_mean, sequence_ratio
from rlzoo.types import PolicyBatch


class REAL(Algorithm):
    """Rewards as labels: good answers of a group shall have grown, bad ones shrunk.

    ``J = -mean over groups of log(1 + sum_{A_i > 0} e^(-s_i / tau)) + log(1 + sum_{A_i < 0}
    e^(s_i / tau))``, ``s_i = (1/|y_i|) sum_t (log_probs_it - old_log_probs_it)``.

    Source: arXiv 2602.05630. Against GSPO: only the sign of A_i matters, and the weights of a group
    are bounded: answers already apart fade like in a cross-entropy, without a clip. Every token
    carries the loss of its group, so other aggregations than ``prompt-mean`` weigh groups by size.

    Args:
        tau: Log-ratio, per token, at which an answer counts as told apart.
    """

    aggregation: ClassVar[Aggregation] = "prompt-mean"
    needs: ClassVar[frozenset[str]] = frozenset({"group_ids"})
    unit: ClassVar[Unit] = "group"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(self, tau: float = 0.5) -> None:
        self.tau = self.positive("tau", tau)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return e^s_i, (N, 1)."""
        return sequence_ratio(batch.log_probs, batch.old_log_probs, batch.mask)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return the objective of the group on each of its tokens; nothing is clipped."""
        assert batch.group_ids is not None
        moved = masked_mean(batch.log_probs - batch.old_log_probs, batch.mask) / self.tau
        label = masked_mean(batch.advantages, batch.mask).sign()
        together = batch.group_ids[:, None] == batch.group_ids
        loss = torch.zeros_like(moved)
        for side in (1, -1):
            terms = torch.where(together & (side == label.T), -side * moved.T, -torch.inf)
            loss = loss + torch.nn.functional.pad(terms, (1, 0)).logsumexp(-1, True)
        return Surrogate(-loss.expand_as(batch.mask), torch.zeros_like(batch.mask))
