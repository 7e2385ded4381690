"""PPO: token ratio, token clip, a critic."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.algorithms.base import Algorithm
from rlzoo.ops import Aggregation


class PPO(Algorithm):
    """Proximal policy optimisation: each token has its own ratio, clip and advantage.

    ``J = mean_t min( r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t )``,
    ``r_t = exp(log_probs_t - old_log_probs_t)``, averaged over all tokens of the step, with A_t
    from a critic by generalised advantage estimation.

    Source: arXiv 1707.06347, eq. 7; the critic's loss and clip are in ``rlzoo.objective``.
    Elsewhere: verl's default loss adds a dual clip at 3 (arXiv 1912.09729); this is the paper's.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"
    advantage: ClassVar[str] = "gae"

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        super().__init__(clip_low, clip_high)
