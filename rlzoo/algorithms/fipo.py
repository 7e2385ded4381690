"""FIPO: a token counts for as much as what followed it was reinforced."""

from __future__ import annotations

import torch
from torch import Tensor

from rlzoo.algorithms.base import Surrogate
from rlzoo.algorithms.dapo import DAPO
from rlzoo.ops import bounded_exp
from rlzoo.types import PolicyBatch


class FIPO(DAPO):
    """Future-KL influenced policy optimization: DAPO with a detached weight on each token.

    ``J = (1 / sum_i |y_i|) sum_i sum_t sg[f_it] min( r_it A_i, clip(r_it) A_i )``,
    ``f_it = clip( exp( sum_{k >= t} 2^(-(k - t) / half_life) d_ik ), weight_floor, weight_cap )``,
    ``d_ik = log_probs_ik - old_log_probs_ik``, ``r_it = exp(d_it)``. sg = stop-gradient.

    Source: arXiv 2603.19835. Against DAPO: credit differs within an answer, without a critic.
    Elsewhere: ms-swift adds a dual clip and a token filter, off here; clipped counts PPO's clip.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
        half_life: Tokens after which a later token's drift counts half.
        weight_floor: Smallest weight; absolute.
        weight_cap: Largest weight; absolute.
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        half_life: float = 32.0,
        weight_floor: float = 1.0,
        weight_cap: float = 1.2,
    ) -> None:
        super().__init__(clip_low, clip_high)
        self.half_life = self.positive("half_life", half_life)
        self.weight_floor = self.non_negative("weight_floor", weight_floor)
        self.weight_cap = self.positive("weight_cap", weight_cap)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return DAPO's surrogate times the weight, its future summed in log2(T) doublings."""
        future, step = (batch.log_probs - batch.old_log_probs).detach(), 1
        while step < future.shape[1]:
            later = torch.nn.functional.pad(future[:, step:], (0, step))
            future, step = future + 2 ** (-step / self.half_life) * later, 2 * step
        weight = bounded_exp(future).clamp(self.weight_floor, self.weight_cap)
        objective, clipped = super().clip(ratio, batch)
        return Surrogate(weight * objective, clipped)
