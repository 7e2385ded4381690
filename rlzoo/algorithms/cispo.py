"""CISPO: the clip acts on the detached weight, so no token ever loses its gradient."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation
from rlzoo.types import PolicyBatch


class CISPO(Algorithm):
    """Clipped importance-sampling policy optimization: REINFORCE with a capped, detached weight.

    ``J = (1 / sum_i |y_i|) sum_i sum_t sg[ min(r_it, ratio_cap) ] A_it log_probs_it``,
    ``r_it = exp(log_probs_it - old_log_probs_it)``, sg = stop-gradient.

    Source: MiniMax-M1, arXiv 2506.13585, eq. 4 (no lower bound, cap not disclosed); ScaleRL, arXiv
    2510.13786, finds caps of 4 to 8 alike. The value of J is not centered: it does not show
    progress. Elsewhere: ``ratio_cap`` is absolute, as TRL's ``epsilon_high``; in verl and slime the
    same cap is written ``clip_high = ratio_cap - 1``.

    Args:
        ratio_cap: Largest weight a token may have; absolute, so 5 means 5 and not 1 + 5.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"

    def __init__(self, ratio_cap: float = 5.0) -> None:
        self.ratio_cap = self.non_negative("ratio_cap", ratio_cap)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``sg[min(r, cap)] A log_probs`` and where the cap acted."""
        weight = ratio.detach().clamp(max=self.ratio_cap)
        clipped = ratio > self.ratio_cap
        return Surrogate(weight * batch.advantages * batch.log_probs, clipped)
