"""DAPO: GRPO with more room above than below, and every token of the batch weighing the same."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.algorithms.base import Algorithm
from rlzoo.ops import Aggregation


class DAPO(Algorithm):
    """Decoupled clip and dynamic sampling policy optimization, the objective of it.

    ``J = 1 / (sum_i |y_i|) sum_i sum_t min( r_it A_i, clip(r_it) A_i )``,
    ``clip(r) = clip(r, 1 - clip_low, 1 + clip_high)``,
    ``r_it = exp(log_probs_it - old_log_probs_it)``, A_i as in GRPO.

    Source: arXiv 2503.14476, eq. 8. Against GRPO: clip-higher leaves unlikely tokens room to grow,
    and the mean over tokens lets long answers weigh more. The rest of the paper is settings of the
    run: no KL, a length reward, the filters MaskTruncated and DynamicSampling. Elsewhere: TRL's
    ``loss_type="dapo"`` is this mean with a symmetric band; verl adds a dual clip at 3.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.28) -> None:
        super().__init__(clip_low, clip_high)
