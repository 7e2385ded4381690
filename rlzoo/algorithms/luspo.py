"""LUSPO: GSPO in which an answer weighs as much as it is long."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.algorithms.gspo import GSPO
from rlzoo.ops import Aggregation


class LUSPO(GSPO):
    """Length-unbiased sequence policy optimization: GSPO's term times the answer's length.

    ``J = (1/N) sum_i |y_i| min( s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i )``,
    ``s_i = exp( (1/|y_i|) sum_t (log_probs_it - old_log_probs_it) )``.

    Source: arXiv 2602.05261. Against GSPO: there a token of an answer twice as long moves half as
    much, which favors short answers; here every token weighs the same. The factor |y_i| is the
    sum over tokens. Elsewhere: TRL's ``loss_type="luspo"``.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "sequence-sum"

    def __init__(self, clip_low: float = 2e-3, clip_high: float = 2.5e-3) -> None:
        super().__init__(clip_low, clip_high)
