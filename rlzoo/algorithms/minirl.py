"""MiniRL: REINFORCE weighted against the sampler and masked against the old policy."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, out_of_band, token_ratio
from rlzoo.types import PolicyBatch


class MiniRL(Algorithm):
    """The first-order form of the sequence objective: two ratios, one weighs and one masks.

    ``J = 1/N sum_i sum_t m_it sg[ min(u_it, weight_cap) ] A_it log_probs_it``,
    ``u_it = exp(log_probs_it - rollout_log_probs_it)``, ``m = 0`` where
    ``r_it = exp(log_probs_it - old_log_probs_it)`` left PPO's band the way A pushes it.

    Source: arXiv 2512.01374. Against CISPO: staleness (r) is masked, while the gap between sampler
    and trainer is inside u, so no further correction belongs on top; no length normalization,
    which would break the first-order argument. On mixture-of-experts models off-policy steps also
    want Routing Replay. Elsewhere: verl's decoupled PPO with token weights.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
        weight_cap: Largest weight a token may have; absolute.
    """

    aggregation: ClassVar[Aggregation] = "sequence-sum"
    advantage: ClassVar[str] = "group-centered"
    needs: ClassVar[frozenset[str]] = frozenset({"rollout_log_probs"})

    def __init__(
        self, clip_low: float = 0.2, clip_high: float = 0.27, weight_cap: float = 5.0
    ) -> None:
        super().__init__(clip_low, clip_high)
        self.weight_cap = self.positive("weight_cap", weight_cap)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``m sg[min(u, cap)] A log_probs`` and where mask or cap acted."""
        assert batch.rollout_log_probs is not None
        masked = out_of_band(ratio, batch.advantages, self.clip_low, self.clip_high)
        weight = token_ratio(batch.log_probs, batch.rollout_log_probs).detach()
        bounded = torch.where(masked, 0.0, weight.clamp(max=self.weight_cap))
        objective = bounded * batch.advantages * batch.log_probs
        return Surrogate(objective, masked | (weight > self.weight_cap))
