"""Clip-Cov: PPO's clip, and a few tokens whose likelihood and advantage agree too well."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate, Unit
from rlzoo.ops import Aggregation, covariance, largest_share
from rlzoo.types import PolicyBatch


class ClipCov(Algorithm):
    """PPO's surrogate without a random few of the tokens that make entropy collapse.

    ``J = (1 / sum_i |y_i|) sum_i sum_t (1 - k_it) min( r_it A_it, clip(r_it) A_it )``,
    ``k_it = 1`` for ``max(1, int(share * tokens))`` drawn from those not clipped whose
    ``cov_it = (A_it - mean A) (log_probs_it - mean log_probs)`` is between the bounds.

    Source: arXiv 2505.22617, section 4. Means over the tokens of the optimizer step. The draw ranks
    tokens by a hash of old log-probability, place and seed, so it is the same in any order, cut or
    number of ranks. Elsewhere: verl takes means over a micro-batch and draws afresh each time.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
        share: Share of the tokens to take out.
        covariance_low: Smallest covariance that may be taken out.
        covariance_high: Largest; what is above is an outlier.
        seed: Another draw.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"
    unit: ClassVar[Unit] = "minibatch"

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        share: float = 2e-4,
        covariance_low: float = 1.0,
        covariance_high: float = 5.0,
        seed: int = 0,
    ) -> None:
        super().__init__(clip_low, clip_high)
        self.share, self.seed = self.non_negative("share", share), seed
        self.covariance_low, self.covariance_high = covariance_low, covariance_high

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return PPO's surrogate, 0 for the tokens drawn."""
        objective, clipped = super().clip(ratio, batch)
        cov = covariance(batch.advantages, batch.log_probs, batch.mask)
        fits = batch.mask & ~clipped & (cov > self.covariance_low) & (cov < self.covariance_high)
        place = torch.arange(cov.shape[1], device=cov.device)
        # The sine hash of shader code: the same number for the same token, on every rank.
        mixed = batch.old_log_probs.double() * 12.9898 + place * 78.233 + self.seed
        drawn = largest_share((mixed.sin() * 43758.5453).frac().abs(), fits, batch.mask, self.share)
        return Surrogate(torch.where(drawn, 0.0, objective), clipped | drawn)
