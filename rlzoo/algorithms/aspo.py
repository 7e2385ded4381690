"""ASPO: the ratio of good tokens turned upside down, so that unlikely ones learn most."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, out_of_band, unit_ratio
from rlzoo.types import PolicyBatch


class ASPO(Algorithm):
    """Asymmetric importance sampling policy optimization: weight 1/r where ``A > 0``.

    ``J = (1 / sum_i |y_i|) sum_i sum_t sg[w_it] A_it pi(y_it) / sg[pi(y_it)]``,
    ``w = min(1 / r, weight_cap)`` where ``A > 0``, ``w = min(r, weight_cap)`` elsewhere,
    ``r_it = exp(log_probs_it - old_log_probs_it)``, with PPO's clip of r. sg = stop-gradient.

    Source: arXiv 2510.06062, without its clip ranges by entropy (Archer). Against PPO: a good token
    that grew is pushed less and one that shrank more; above ``weight_cap`` a token keeps a bounded
    gradient, where a dual clip drops it, and its value is ``weight_cap A log_probs`` as in the
    authors' code.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
        weight_cap: Largest weight a token may have; absolute.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"

    def __init__(
        self, clip_low: float = 0.2, clip_high: float = 0.2, weight_cap: float = 3.0
    ) -> None:
        super().__init__(clip_low, clip_high)
        self.weight_cap = self.positive("weight_cap", weight_cap)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``sg[w] A``, with the token's gradient unless PPO's clip took it."""
        clipped = out_of_band(ratio, batch.advantages, self.clip_low, self.clip_high)
        r, positive = ratio.detach(), batch.advantages > 0
        flipped, upright = 1 / r.clamp(max=1 + self.clip_high), r.clamp(min=1 - self.clip_low)
        weight = torch.where(positive, flipped, upright)
        live = torch.where(weight > self.weight_cap, batch.log_probs, unit_ratio(batch.log_probs))
        weight = weight.clamp(max=self.weight_cap) * torch.where(clipped, 1.0, live)
        return Surrogate(weight * batch.advantages, clipped)
