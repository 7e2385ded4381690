"""From rewards to advantages: one estimator per class, all over the whole batch of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rlzoo import ranks
from rlzoo.errors import UserError, nearest
from rlzoo.groups import Groups


class Estimate(NamedTuple):
    """What an estimator returns, both (N, T) and 0 where masked; returns only with a critic."""

    advantages: Tensor
    returns: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """What this rank's rollouts earned.

    Attributes:
        scores: (N,) combined reward of each answer; anything where not ``valid``.
        valid: (N,) bool, False where every reward abstained: the row leaves group statistics.
        group_ids: (N,) long, global position of the row's prompt.
        mask: (N, T) bool.
        penalty: (N, T) KL cost per token to take from the reward, or None.
        values: (N, T) the critic's values, or None.
    """

    scores: Tensor
    valid: Tensor
    group_ids: Tensor
    mask: Tensor
    penalty: Tensor | None = None
    values: Tensor | None = None


def token_rewards(scores: Tensor, mask: Tensor, penalty: Tensor | None = None) -> Tensor:
    """Reward per token: the score on the last token, minus the KL cost on every token.

    ``r_t = -penalty_t + score * [t is the last token]``

    Args:
        scores: (N,).
        mask: (N, T) bool; an empty answer earns nothing.
        penalty: (N, T), or None.

    Returns:
        (N, T), 0 where masked.
    """
    steps = torch.arange(mask.shape[-1], device=mask.device)
    last = torch.where(mask, steps, -1).amax(-1, keepdim=True)
    rewards = torch.where((steps == last) & mask, scores[:, None], 0.0)
    return rewards if penalty is None else torch.where(mask, rewards - penalty, 0.0)


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> Estimate:
    """Generalised advantage estimation over the tokens of each answer.

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``,
    ``return_t = A_t + V_t``; V after the last token is 0. Masked tokens are stepped over.

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


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean and divide by the standard deviation over the tokens of all ranks.

    ``(x - mean) / sqrt(var + 1e-8)`` with the unbiased variance; one token or none is left alone.

    Args:
        values: (N, T).
        mask: (N, T) bool.

    Returns:
        (N, T), 0 where masked.
    """
    kept = torch.where(mask, values, 0.0).double()
    count, total = ranks.sum_over_ranks(torch.stack([mask.sum().double(), kept.sum()]))
    if count < 2:
        return torch.where(mask, values, 0.0)
    centred = torch.where(mask, kept - total / count, 0.0)
    variance = ranks.sum_over_ranks(centred.square().sum()) / (count - 1)
    return (centred * torch.rsqrt(variance + 1e-8)).to(values.dtype)


class Advantage(ABC):
    """An advantage estimator.

    Attributes:
        name: Short name by which an algorithm or a configuration asks for it.
        needs_values: Whether it reads a critic's values.
        minimum_group: Smallest number of answers per prompt that gives it a signal.
    """

    name: ClassVar[str]
    needs_values: ClassVar[bool] = False
    minimum_group: ClassVar[int] = 1

    @abstractmethod
    def __call__(self, outcome: Outcome) -> Estimate:
        """Return (N, T) advantages of this rank's rows, and returns if there is a critic."""


class GroupAdvantage(Advantage):
    """Base of estimators that give every token of an answer one number, from its group.

    Groups are looked up by id over all ranks, so it does not matter where an answer was sampled.
    A group whose answers all earned the same gets exactly 0, and so does a group of one.
    """

    minimum_group: ClassVar[int] = 2

    @abstractmethod
    def of_groups(self, groups: Groups) -> Tensor:
        """Return (N,) advantages of all ranks' rows."""

    def __call__(self, outcome: Outcome) -> Estimate:
        """Return the advantages of this rank's rows; the reward of an answer includes its KL."""
        rewards = outcome.scores.double()
        if outcome.penalty is not None:
            rewards = rewards - torch.where(outcome.mask, outcome.penalty, 0.0).double().sum(-1)
        mine = tuple(x.cpu() for x in (rewards, outcome.group_ids, outcome.valid))
        parts = ranks.gather_objects(mine)
        groups = Groups(*(torch.cat(column) for column in zip(*parts, strict=True)))
        advantages = torch.where(groups.signal, self.of_groups(groups), 0.0)
        start = sum(len(part[0]) for part in parts[: ranks.rank()])
        mine_only = advantages[start : start + len(rewards)].to(outcome.mask.device).float()
        return Estimate(torch.where(outcome.mask, mine_only[:, None], 0.0))


class GroupNormalized(GroupAdvantage):
    """Mean of the group taken off, divided by its standard deviation.

    ``A_i = (R_i - mean) / (std + 1e-4)``, std unbiased (n - 1).

    Source: GRPO, arXiv 2402.03300, section 4.1.2. Two groups with rewards (0, 1) and (0, 2) get the
    same advantages, +-0.7071: the scale of a group is lost, and with several rewards they are
    summed before this is done.
    """

    name: ClassVar[str] = "group"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``(R - mean) / (std + 1e-4)``."""
        return (groups.values - groups.mean[groups.index]) / (groups.std[groups.index] + 1e-4)


class GroupCentered(GroupAdvantage):
    """Mean of the group taken off, scale kept.

    ``A_i = R_i - mean``

    Source: Dr. GRPO, arXiv 2503.20783, section 3.2.
    """

    name: ClassVar[str] = "group-centered"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``R - mean``."""
        return groups.values - groups.mean[groups.index]


class LeaveOneOut(GroupAdvantage):
    """Each answer against the mean of the others.

    ``A_i = R_i - mean_{j != i} R_j = n / (n - 1) (R_i - mean)``

    Source: RLOO, arXiv 2402.14740, eq. 8.
    """

    name: ClassVar[str] = "leave-one-out"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``n / (n - 1) (R - mean)``."""
        count = groups.count[groups.index]
        off = groups.values - groups.mean[groups.index]
        return off * count / (count - 1).clamp(min=1)


class GAE(Advantage):
    """Generalised advantage estimation from a critic, whitened over the batch.

    ``A_t = sum_k (gamma lam)^k (r_{t+k} + gamma V_{t+k+1} - V_{t+k})``; the critic's targets are
    taken before whitening.

    Source: arXiv 1506.02438, eq. 16.

    Args:
        gamma: Discount per token; 1 for tasks rewarded at the end of an answer.
        lam: Trace decay per token; 1 is reward minus value.
        whitening: Whether to standardise advantages over all tokens of the iteration.
    """

    name: ClassVar[str] = "gae"
    needs_values: ClassVar[bool] = True

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
        rewards = token_rewards(outcome.scores.to(outcome.values.dtype), mask, outcome.penalty)
        estimate = generalised_advantages(
            rewards, outcome.values, mask, gamma=self.gamma, lam=self.lam
        )
        if not self.whitening:
            return estimate
        return Estimate(whiten(estimate.advantages, mask), estimate.returns)


ESTIMATORS: dict[str, type[Advantage]] = {
    cls.name: cls for cls in (GroupNormalized, GroupCentered, LeaveOneOut, GAE)
}


def default_advantage(name: str) -> Advantage:
    """Return the estimator of a short name, with its defaults.

    Raises:
        UserError: If there is none of that name.
    """
    if name not in ESTIMATORS:
        raise UserError(f"advantage '{name}' is unknown; {nearest(name, list(ESTIMATORS))}")
    return ESTIMATORS[name]()


def rows_with_signal(outcome: Outcome) -> tuple[Tensor, int, int]:
    """Tell which rows belong to a group whose rewards differ.

    A group whose answers all earned the same teaches a group estimator nothing: with a success rate
    p that happens with probability ``p^G + (1 - p)^G``.

    Args:
        outcome: This rank's.

    Returns:
        (N,) bool; the number of this rank's groups without signal; the number of its groups.
    """
    groups = Groups(outcome.scores, outcome.group_ids, outcome.valid)
    return groups.signal, int(groups.constant.sum()), len(groups.constant)
