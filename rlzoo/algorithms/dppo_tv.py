"""DPPO: the trust region bounds how far a probability moved, not its ratio."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, bounded_exp
from rlzoo.types import PolicyBatch


class DPPOTV(Algorithm):
    """Divergence PPO, binary total variation: tokens that moved too much probability are masked.

    ``J = (1 / sum_i |y_i|) sum_i sum_t m_it sg[ min(r_it, ratio_cap) ] A_it log_probs_it``,
    ``m = 0`` where the divergence of ``p = exp(log_probs)`` from ``q = exp(old_log_probs)``,
    ``|p - q|``, is above its bound and p moved the way A pushes it, 1 elsewhere.

    Source: arXiv 2602.04879. Against PPO: PPO's band is narrow for unlikely tokens and wide for
    likely ones. Elsewhere: the authors take q from the sampler, verl and this from the weights
    before the update; verl's cap is 3 unless ``clip_ratio_c`` is set.

    Args:
        divergence_low: Bound on the divergence where a negative advantage lowered p.
        divergence_high: Bound on the divergence where a positive advantage raised p.
        ratio_cap: Largest weight a token may have; absolute.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"

    def __init__(
        self,
        divergence_low: float = 0.15,
        divergence_high: float = 0.15,
        ratio_cap: float = 20.0,
    ) -> None:
        self.divergence_low = self.non_negative("divergence_low", divergence_low)
        self.divergence_high = self.non_negative("divergence_high", divergence_high)
        self.ratio_cap = self.positive("ratio_cap", ratio_cap)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the divergence of two binary distributions, (N, T)."""
        return (p - q).abs()

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``m sg[min(r, cap)] A log_probs`` and where mask or cap acted."""
        p, q = (bounded_exp(x.detach().double()) for x in (batch.log_probs, batch.old_log_probs))
        far, up = self.divergence(p, q), batch.advantages > 0
        masked = up & (p > q) & (far > self.divergence_high)
        masked |= (batch.advantages < 0) & (p < q) & (far > self.divergence_low)
        weight = torch.where(masked, 0.0, ratio.detach().clamp(max=self.ratio_cap))
        objective = weight * batch.advantages * batch.log_probs
        return Surrogate(objective, masked | (ratio > self.ratio_cap))
