"""VESPO: a smooth, detached weight of the whole answer's ratio."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, bounded_exp, product_ratio
from rlzoo.types import PolicyBatch


class VESPO(Algorithm):
    """Variational sequence-level soft policy optimization: REINFORCE with a weight phi(W).

    ``J = (1 / sum_i |y_i|) sum_i sum_t sg[ phi(W_i) ] A_it log_probs_it``,
    ``phi(W) = W^k exp(lam (1 - W))``, ``W_i = exp( sum_t (log_probs_it - old_log_probs_it) )``,
    (k, lam) by the sign of A_it. phi(1) = 1 and phi vanishes at 0 and at infinity.

    Source: arXiv 2602.10693. Against TOPR and CISPO: the weight is smooth and never a cap, and
    needs no length normalization. Its value is not centered. Elsewhere: TRL's
    ``loss_type="vespo"``.

    Args:
        k_pos: Power of W for positive advantages.
        lambda_pos: Rate at which their weight falls for large W.
        k_neg: Power of W for negative advantages.
        lambda_neg: Rate at which their weight falls for large W.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"

    def __init__(
        self,
        k_pos: float = 2.0,
        lambda_pos: float = 3.0,
        k_neg: float = 3.0,
        lambda_neg: float = 2.0,
    ) -> None:
        self.k_pos = self.non_negative("k_pos", k_pos)
        self.lambda_pos = self.non_negative("lambda_pos", lambda_pos)
        self.k_neg = self.non_negative("k_neg", k_neg)
        self.lambda_neg = self.non_negative("lambda_neg", lambda_neg)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return W_i, (N, 1)."""
        return product_ratio(batch.log_probs, batch.old_log_probs, batch.mask)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``sg[phi(W)] A log_probs``; nothing is clipped."""
        w = ratio.detach()
        pos = bounded_exp(self.k_pos * w.log() + self.lambda_pos * (1 - w))
        neg = bounded_exp(self.k_neg * w.log() + self.lambda_neg * (1 - w))
        weight = torch.where(batch.advantages >= 0, pos, neg)
        return Surrogate(weight * batch.advantages * batch.log_probs, torch.zeros_like(batch.mask))
