"""DRO: REINFORCE held back by the squared log-ratio."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation
from rlzoo.types import PolicyBatch


class DRO(Algorithm):
    """Direct reward optimization: a quadratic penalty pulls the policy back, nothing is clipped.

    ``J = (1 / sum_i |y_i|) sum_i sum_t A_it log_probs_it - beta/2 d_it^2``,
    ``d_it = log_probs_it - old_log_probs_it``: a token's gradient is ``A_it - beta d_it``.

    Source: arXiv 2405.19107. Against PPO: off-policy answers need no ratio, and a token without
    advantage is still pulled back. Elsewhere: verl's ``loss_mode=dro`` and Tinker have this token
    form; Kimi k1.5 (arXiv 2501.12599) squares the log-ratio of the whole answer.

    Args:
        beta: Strength of the pull toward the old policy.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"

    def __init__(self, beta: float = 0.1) -> None:
        self.beta = self.non_negative("beta", beta)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``A log_probs - beta/2 d^2``; nothing is clipped."""
        pull = 0.5 * self.beta * (batch.log_probs - batch.old_log_probs).square()
        return Surrogate(batch.advantages * batch.log_probs - pull, torch.zeros_like(batch.mask))
