"""The base of advantage estimators, what one is given and returns, and shared functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.advantages.groups import Groups
from rlzoo.configuration.recorded import Recorded
from rlzoo.types import Rewards, Rollouts


class Estimate(NamedTuple):
    """What an estimator returns, both (N, T) and 0 where masked; returns only with a critic."""

    advantages: Tensor
    returns: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """What this rank's rollouts earned.

    Attributes:
        rewards: (N,) combined reward of each answer; anything where not ``valid``.
        valid: (N,) bool, False where every reward abstained: the row leaves group statistics.
        group_ids: (N,) long, global position of the row's prompt.
        mask: (N, T) bool.
        penalty: (N, T) KL cost per token to take from the reward, or None.
        values: (N, T) the critic's values, or None.
        components: (N, K) the rewards one by one, NaN where one abstained, or None.
        weights: (K,) weight of each in ``rewards``, or None.
        lengths: (N,) tokens of each answer as sampled; those of the mask if None.
    """

    rewards: Tensor
    valid: Tensor
    group_ids: Tensor
    mask: Tensor
    penalty: Tensor | None = None
    values: Tensor | None = None
    components: Tensor | None = None
    weights: Tensor | None = None
    lengths: Tensor | None = None

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        rewards: Rewards,
        *,
        penalty: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Outcome:
        """Return what rollouts earned.

        Args:
            rollouts: N answers.
            rewards: Theirs.
            penalty: See the attribute.
            values: See the attribute.
        """
        return cls(
            rewards=rewards.totals,
            valid=rewards.valid,
            group_ids=rollouts.group_ids,
            mask=rollouts.training_mask(rewards),
            penalty=penalty,
            values=values,
            components=rewards.components(),
            weights=torch.tensor(rewards.weights),
            lengths=rollouts.lengths(),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the advantages: that of the rewards, or fp32 if they have less."""
        return torch.promote_types(self.rewards.dtype, torch.float32)


def token_rewards(totals: Tensor, mask: Tensor, penalty: Tensor | None = None) -> Tensor:
    """Reward per token: the answer's on the last token, minus the KL cost on every token.

    ``reward_t = -penalty_t + total * [t is the last token]``

    Args:
        totals: (N,) reward of each answer.
        mask: (N, T) bool; an empty answer earns nothing.
        penalty: (N, T), or None.

    Returns:
        (N, T), 0 where masked.
    """
    steps = torch.arange(mask.shape[-1], device=mask.device)
    last = torch.where(mask, steps, -1).amax(-1, keepdim=True)
    rewards = torch.where((steps == last) & mask, totals[:, None], 0.0)
    return rewards if penalty is None else torch.where(mask, rewards - penalty, 0.0)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean and divide by the standard deviation over the tokens of all ranks.

    ``(x - mean) / sqrt(var + 1e-8)`` with the unbiased variance; one token or none is left alone,
    and equal tokens give exactly 0: in floating point their mean need not be that number.

    Args:
        values: (N, T).
        mask: (N, T) bool.

    Returns:
        (N, T), 0 where masked.
    """
    kept = torch.where(mask, values, 0.0).double()
    count, total = distributed.sum_over_ranks(torch.stack([mask.sum().double(), kept.sum()]))
    if count < 2:
        return torch.where(mask, values, 0.0)
    if _all_equal(kept, mask):
        return torch.zeros_like(values)
    centered = torch.where(mask, kept - total / count, 0.0)
    variance = distributed.sum_over_ranks(centered.square().sum()) / (count - 1)
    return (centered * torch.rsqrt(variance + 1e-8)).to(values.dtype)


def _all_equal(values: Tensor, mask: Tensor) -> bool:
    mine = values[mask]
    extremes = (float(mine.min()), float(mine.max())) if len(mine) else None
    found = [pair for pair in distributed.gather_objects(extremes) if pair is not None]
    return bool(min(low for low, _ in found) >= max(high for _, high in found))


class Advantage(Recorded, ABC):
    """An advantage estimator.

    Attributes:
        name: Short name by which an algorithm or a configuration asks for it.
        needs_values: Whether it reads a critic's values.
        per_token: Whether tokens of one answer may get different numbers; an objective that clips
            whole answers by one advantage each (``one_advantage_per_answer``) refuses it.
        by_group: Whether a group whose answers all earned the same gets exactly 0, so that it can
            be left out of an update.
        takes_penalty: Whether a KL cost in the reward leaves its formula meaningful.
        minimum_group: Smallest number of answers per prompt that gives it a signal.
    """

    name: ClassVar[str]
    needs_values: ClassVar[bool] = False
    per_token: ClassVar[bool] = False
    by_group: ClassVar[bool] = False
    takes_penalty: ClassVar[bool] = True
    minimum_group: int = 1

    @abstractmethod
    def __call__(self, outcome: Outcome) -> Estimate:
        """Return (N, T) advantages of this rank's rows, and returns if there is a critic."""

    def rows_with_signal(self, outcome: Outcome) -> tuple[Tensor, int, int]:
        """Tell which rows belong to a group that can teach something; see the function."""
        return rows_with_signal(outcome)


def rows_with_signal(outcome: Outcome) -> tuple[Tensor, int, int]:
    """Tell which rows belong to a group whose rewards differ.

    A group whose answers all earned the same teaches a group estimator nothing: with a success rate
    p that happens with probability ``p^G + (1 - p)^G``.

    Args:
        outcome: This rank's.

    Returns:
        (N,) bool; the number of this rank's groups without signal; the number of its groups.
    """
    groups = Groups(outcome.rewards, outcome.group_ids, outcome.valid)
    return groups.signal, int(groups.constant.sum()), len(groups.constant)
