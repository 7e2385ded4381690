"""GRPO: PPO's token ratio and clip, with the group as the baseline instead of a critic."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.algorithms.base import Algorithm
from rlzoo.ops import Aggregation


class GRPO(Algorithm):
    """Group relative policy optimization: token ratio and clip, mean over each answer.

    ``J = 1/N sum_i 1/|y_i| sum_t min( r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i )``,
    ``r_it = exp(log_probs_it - old_log_probs_it)``,
    ``A_i = (R_i - mean of its group) / (std of its group + 1e-4)``.

    Source: DeepSeekMath, arXiv 2402.03300, eq. 3. The paper's KL term (k3, 0.04) is a setting of
    the module, off by default as in later practice. Elsewhere: TRL calls this
    ``loss_type="grpo"`` while its default is DAPO's token mean; verl adds a dual clip at 3.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        super().__init__(clip_low, clip_high)
