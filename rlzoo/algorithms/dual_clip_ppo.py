"""PPO with a second clip: a bad token that became likely cannot make the step explode."""

from __future__ import annotations

import torch
from torch import Tensor

from rlzoo.algorithms.base import Surrogate
from rlzoo.algorithms.ppo import PPO
from rlzoo.errors import UserError
from rlzoo.types import PolicyBatch


class DualClipPPO(PPO):
    """PPO, with the loss of tokens of negative advantage bounded above as well.

    ``J_t = max( min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t), dual_clip_cap A_t )``
    where ``A_t < 0``, PPO's term elsewhere: such a token loses its gradient above the cap.

    Source: arXiv 1912.09729 (dual clip, 3); INTELLECT-2, arXiv 2505.07291 (two-sided clip, 4) is
    the same function. Against PPO: PPO leaves r_t unbounded where A_t < 0. Elsewhere: TRL and slime
    call the cap ``delta`` and ``eps_clip_c`` and leave it off; verl has it on at 3 under every
    ratio loss.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
        dual_clip_cap: Absolute ratio above which a negative advantage loses its gradient; inf is
            PPO.
    """

    def __init__(
        self, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip_cap: float = 3.0
    ) -> None:
        super().__init__(clip_low, clip_high)
        if not dual_clip_cap > 1:
            raise UserError(f"DualClipPPO: dual_clip_cap must be > 1, got {dual_clip_cap}")
        self.dual_clip_cap = dual_clip_cap

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return PPO's surrogate, bounded below where the advantage is negative."""
        objective, clipped = super().clip(ratio, batch)
        over = (batch.advantages < 0) & (ratio > self.dual_clip_cap)
        bounded = torch.where(over, self.dual_clip_cap * batch.advantages, objective)
        return Surrogate(bounded, clipped | over)
