"""Generalized advantage estimation, with a critic."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.advantages.base import Advantage, Estimate, Outcome, token_rewards, whiten
from rlzoo.errors import UserError


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> Estimate:
    """Generalized advantage estimation over the tokens of each answer.

    ``delta_t = reward_t + gamma value_{t+1} - value_t``, ``A_t = delta_t + gamma lam A_{t+1}``,
    ``return_t = A_t + value_t``; the value after the last token is 0. Masked tokens are stepped
    over.

    Source: arXiv 1506.02438, eq. 16.

    Args:
        rewards: (N, T).
        values: (N, T).
        mask: (N, T) bool.
        gamma: Discount per token.
        lam: Trace decay per token.

    Returns:
        Advantages and returns, not whitened.
    """
    rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
    advantage = next_value = torch.zeros_like(values[:, 0])
    columns = []
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = torch.where(mask[:, t], delta + gamma * lam * advantage, advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        columns.append(advantage)
    advantages = torch.where(mask, torch.stack(columns[::-1], dim=1), 0.0)
    return Estimate(advantages, torch.where(mask, advantages + values, 0.0))


class GAE(Advantage):
    """Generalized advantage estimation from a critic, whitened over the batch.

    ``A_t = sum_k (gamma lam)^k delta_{t+k}``, ``delta_t = reward_t + gamma value_{t+1} - value_t``;
    the critic's targets are taken before whitening.

    Source: arXiv 1506.02438, eq. 16.

    Args:
        gamma: Discount per token; 1 for tasks rewarded at the end of an answer.
        lam: Trace decay per token; 1 is reward minus value.
        whitening: Whether to standardize advantages over all tokens of the iteration.
    """

    name: ClassVar[str] = "gae"
    needs_values: ClassVar[bool] = True
    per_token: ClassVar[bool] = True

    def __init__(self, gamma: float = 1.0, lam: float = 1.0, whitening: bool = True) -> None:
        for key, value in (("gamma", gamma), ("lam", lam)):
            if not 0 <= value <= 1:
                raise UserError(f"GAE: {key} must be between 0 and 1, got {value}")
        self.gamma, self.lam, self.whitening = gamma, lam, whitening

    def __call__(self, outcome: Outcome) -> Estimate:
        """Return advantages and the critic's targets."""
        if outcome.values is None:
            raise ValueError("GAE: the outcome carries no values")
        mask = outcome.mask & outcome.valid[:, None]
        rewards = token_rewards(outcome.rewards.to(outcome.values.dtype), mask, outcome.penalty)
        estimate = generalized_advantages(
            rewards, outcome.values, mask, gamma=self.gamma, lam=self.lam
        )
        if not self.whitening:
            return estimate
        return Estimate(whiten(estimate.advantages, mask), estimate.returns)
