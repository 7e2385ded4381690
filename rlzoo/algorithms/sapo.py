"""SAPO: a smooth gate instead of a clip."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, bounded_exp
from rlzoo.types import PolicyBatch


class SAPO(Algorithm):
    """Soft adaptive policy optimization: a token's gradient fades as its ratio leaves 1.

    ``J = 1/N sum_i 1/|y_i| sum_t f(r_it) A_it``, ``f(r) = (4 / tau) sigmoid(tau (r - 1))``,
    tau = tau_pos if ``A_it > 0`` else tau_neg; the weight of a token is ``f'(r) r = 4 p (1 - p) r``
    with ``p = sigmoid(tau (r - 1))``: r at 1, and 0 far away on both sides.

    Source: arXiv 2511.20347. Against GRPO: no edge at which a gradient vanishes. At r = 1 the value
    is 2 A / tau, so the loss is not centered. Elsewhere: TRL's ``sapo_temperature_*``, verl's
    ``tau_pos`` and ``tau_neg``, the same function.

    Args:
        tau_pos: How fast the gate closes for positive advantages; toward 0 it never does.
        tau_neg: The same for negative ones, whose gradients spread over the whole vocabulary.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"

    def __init__(self, tau_pos: float = 1.0, tau_neg: float = 1.05) -> None:
        self.tau_pos = self.positive("tau_pos", tau_pos)
        self.tau_neg = self.positive("tau_neg", tau_neg)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``f(r) A``; nothing is clipped."""
        pos, neg = (
            4 / tau / (1 + bounded_exp(tau * (1 - ratio))) for tau in (self.tau_pos, self.tau_neg)
        )
        gate = torch.where(batch.advantages > 0, pos, neg)
        return Surrogate(gate * batch.advantages, torch.zeros_like(batch.mask))
