"""PPO: token ratio, token clip, a critic."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.errors import UserError
from rlzoo.ops import Aggregation
from rlzoo.types import PolicyBatch


class PPO(Algorithm):
    """Proximal policy optimization: each token has its own ratio, clip and advantage.

    ``J = mean_t min( r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t )``,
    ``r_t = exp(log_probs_t - old_log_probs_t)``, averaged over all tokens of the step, with A_t
    from a critic by generalized advantage estimation. With a ``dual_clip_cap`` c the term of a
    token with ``A_t < 0`` is ``max(that, c A_t)``: it loses its gradient above ratio c.

    Source: arXiv 1707.06347, eq. 7; dual clip arXiv 1912.09729, eq. 4 (c = 3), the same function as
    INTELLECT-2's two-sided clip, arXiv 2505.07291 (c = 4). Elsewhere: verl has c = 3 on under every
    ratio loss; TRL (``delta``) and slime leave it off, as here.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
        dual_clip_cap: Absolute ratio above which a negative advantage loses its gradient, or none.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"
    advantage: ClassVar[str] = "gae"

    def __init__(
        self, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip_cap: float | None = None
    ) -> None:
        super().__init__(clip_low, clip_high)
        if dual_clip_cap is not None and not dual_clip_cap > 1:
            raise UserError(f"PPO: dual_clip_cap must be > 1 or null, got {dual_clip_cap}")
        self.dual_clip_cap = dual_clip_cap

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return the clipped surrogate, bounded below where the advantage is negative."""
        objective, clipped = super().clip(ratio, batch)
        if self.dual_clip_cap is None:
            return Surrogate(objective, clipped)
        over = (batch.advantages < 0) & (ratio > self.dual_clip_cap)
        bounded = torch.where(over, self.dual_clip_cap * batch.advantages, objective)
        return Surrogate(bounded, clipped | over)
