"""GMPO: the geometric mean of token ratios, each clipped before the mean."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, bounded_exp, masked_mean
from rlzoo.types import PolicyBatch


class GMPO(Algorithm):
    """Geometric-mean policy optimization: one ratio per answer, made of clipped token ratios.

    ``J = (1/N) sum_i A_i exp( (1/|y_i|) sum_t c_it )``, ``d_it = log_probs_it - old_log_probs_it``,
    ``c_it = min(d_it, log_clip_high)`` if ``A_i > 0`` else ``max(d_it, -log_clip_low)``.

    Source: arXiv 2507.20673. Against GSPO: outliers are cut token by token, and the
    rest of the answer keeps its gradient. Elsewhere: TRL has it as an experimental trainer; verl's
    ``geo_mean`` averages over the rows of a micro-batch, so its gradient grows with their number.

    Args:
        log_clip_low: Log-ratio below 0 at which a negative advantage loses its gradient: e^-0.4.
        log_clip_high: Log-ratio above 0 at which a positive advantage loses its gradient: e^0.4.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(self, log_clip_low: float = 0.4, log_clip_high: float = 0.4) -> None:
        self.log_clip_low = self.non_negative("log_clip_low", log_clip_low)
        self.log_clip_high = self.non_negative("log_clip_high", log_clip_high)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return the geometric mean of the clipped token ratios, (N, 1)."""
        drift = batch.log_probs - batch.old_log_probs
        high, low = drift.clamp(max=self.log_clip_high), drift.clamp(min=-self.log_clip_low)
        return bounded_exp(masked_mean(torch.where(batch.advantages > 0, high, low), batch.mask))

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``ratio A`` and the tokens that were cut inside the mean."""
        drift, positive = batch.log_probs - batch.old_log_probs, batch.advantages > 0
        negative = batch.advantages < 0
        clipped = positive & (drift > self.log_clip_high) | negative & (drift < -self.log_clip_low)
        return Surrogate(ratio * batch.advantages, clipped)
