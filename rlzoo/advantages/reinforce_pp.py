"""REINFORCE++: no critic, and statistics over the tokens of the whole batch."""

from __future__ import annotations

from typing import ClassVar

import torch

from rlzoo.advantages.base import Advantage, Estimate, Outcome, token_rewards, whiten
from rlzoo.advantages.gae import generalized_advantages
from rlzoo.advantages.group import GroupCentered
from rlzoo.errors import UserError


class ReinforcePP(Advantage):
    """Discounted reward to go of each token, whitened over the tokens of the whole batch.

    ``A_t = (to_go_t - mean) / sqrt(var + 1e-8)``,
    ``to_go_t = sum_{k >= t} gamma^(k - t) reward_k``,
    ``reward_t`` the answer's reward on its last token, minus beta KL on every token
    (``kl.placement: reward``, k1).

    Source: REINFORCE++, arXiv 2501.03262, section 3. Mean and variance are over tokens, so long
    answers weigh more. The baseline is the batch's: a prompt whose answers all fail is pushed down.

    Args:
        gamma: Discount per token.
    """

    name: ClassVar[str] = "reinforce++"
    per_token: ClassVar[bool] = True

    def __init__(self, gamma: float = 1.0) -> None:
        if not 0 <= gamma <= 1:
            raise UserError(f"ReinforcePP: gamma must be between 0 and 1, got {gamma}")
        self.gamma = gamma

    def __call__(self, outcome: Outcome) -> Estimate:
        """Return the whitened rewards to go."""
        mask = outcome.mask & outcome.valid[:, None]
        rewards = token_rewards(outcome.rewards.double(), mask, outcome.penalty)
        to_go = generalized_advantages(
            rewards, torch.zeros_like(rewards), mask, gamma=self.gamma, lam=1.0
        )
        return Estimate(whiten(to_go.advantages, mask).to(outcome.dtype))


class ReinforcePPBaseline(GroupCentered):
    """Mean of the group taken off, then whitened over the tokens of the whole batch.

    ``A_i = (R_i - mean_group - m) / sqrt(v + 1e-8)``, m and v the mean and unbiased variance of
    ``R - mean_group`` over all tokens of the iteration.

    Source: REINFORCE++-baseline, arXiv 2501.03262, section 3. A group whose answers all earned the
    same counts in m and v and gets exactly 0; in verl it gets ``-m / sqrt(v)``.
    """

    name: ClassVar[str] = "reinforce++-baseline"

    def __call__(self, outcome: Outcome) -> Estimate:
        """Return the whitened, centered rewards."""
        centered, signal = self.of_rows(outcome)
        tokens = centered[:, None].expand_as(outcome.mask)
        white = whiten(tokens, outcome.mask & outcome.valid[:, None])
        kept = torch.where(signal[:, None] & outcome.mask, white, 0.0)
        return Estimate(kept.to(outcome.dtype))
