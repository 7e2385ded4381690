"""TOPR: good answers as they are, bad ones weighted by what the policy still thinks of them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, product_ratio
from rlzoo.types import PolicyBatch


class TOPR(Algorithm):
    """Tapered off-policy REINFORCE: only answers of negative advantage carry a capped ratio.

    ``J = 1/N sum_i sum_t w_i A_it log_probs_it``, ``w_i = 1`` where ``A_it >= 0``, else
    ``sg[ min(W_i, 1) ]``, ``W_i = exp( sum_t (log_probs_it - old_log_probs_it) )``.

    Source: arXiv 2503.14286. Against REINFORCE: an answer that the policy already unlearned is
    pushed down no further, while good ones are learned from however unlikely. For long answers W_i
    falls to 0 early. Elsewhere: ROLL caps the ratio per token and counts a reward of 0 as negative.
    """

    aggregation: ClassVar[Aggregation] = "sequence-sum"
    advantage: ClassVar[str] = "group-centered"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(self) -> None:
        """Take nothing: the cap is 1."""

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return W_i, (N, 1)."""
        return product_ratio(batch.log_probs, batch.old_log_probs, batch.mask)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``w A log_probs`` and the negative answers whose ratio was capped."""
        negative = batch.advantages < 0
        weight = torch.where(negative, ratio.detach().clamp(max=1), 1.0)
        clipped = negative & (ratio > 1)
        return Surrogate(weight * batch.advantages * batch.log_probs, clipped)
