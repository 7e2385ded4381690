"""Dr. GRPO: GRPO without its two normalizations."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.algorithms.base import Algorithm
from rlzoo.ops import Aggregation


class DrGRPO(Algorithm):
    """GRPO done right: no division by the answer's length, none by the group's deviation.

    ``J = 1/N sum_i 1/longest sum_t min( r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i )``,
    ``r_it = exp(log_probs_it - old_log_probs_it)``, ``A_i = R_i - mean of its group``,
    ``longest`` the longest answer allowed, a constant.

    Source: arXiv 2503.20783, section 3.2. Against GRPO: long wrong answers are no longer
    penalized less per token, nor are easy and hard prompts weighted more; the loss is about
    |y| / longest times smaller, so learning rates do not carry over. Elsewhere: TRL needs both
    ``loss_type="dr_grpo"`` and ``scale_rewards=False``; verl divides by the padded width
    unless told otherwise.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "constant-length"
    advantage: ClassVar[str] = "group-centered"

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        super().__init__(clip_low, clip_high)
