"""One number per answer, from the answers to the same prompt."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.advantages.base import Advantage, Estimate, Outcome
from rlzoo.advantages.groups import Groups
from rlzoo.errors import UserError

STD_FLOOR = 1e-4
"""Added to a standard deviation before dividing by it."""


class Gathered:
    """Columns of all ranks' rows, and the way back to this rank's.

    Args:
        *columns: Tensors of this rank whose first axis is N.
    """

    def __init__(self, *columns: Tensor) -> None:
        parts = distributed.gather_objects(tuple(column.cpu() for column in columns))
        self.columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        start = sum(len(part[0]) for part in parts[: distributed.rank()])
        self._mine = slice(start, start + len(columns[0]))
        self._device = columns[0].device

    def mine(self, values: Tensor) -> Tensor:
        """Return this rank's rows of a tensor over all ranks' rows."""
        return values[self._mine].to(self._device)


def to_tokens(values: Tensor, outcome: Outcome) -> Tensor:
    """Give every token of an answer its answer's number.

    Args:
        values: (N,) float64.
        outcome: Whose mask and precision are used.

    Returns:
        (N, T), 0 where masked.
    """
    values = values.to(outcome.mask.device, outcome.dtype)
    return torch.where(outcome.mask, values[:, None], 0.0)


class GroupAdvantage(Advantage):
    """Base of estimators that give every token of an answer one number, from its group.

    Groups are looked up by id over all ranks, so it does not matter where an answer was sampled.
    A group whose answers all earned the same gets exactly 0, and so does a group of one.
    """

    by_group: ClassVar[bool] = True
    minimum_group: int = 2

    @abstractmethod
    def of_groups(self, groups: Groups) -> Tensor:
        """Return (N,) advantages of all ranks' rows."""

    def of_rows(self, outcome: Outcome) -> tuple[Tensor, Tensor]:
        """Return (N,) float64 advantages of this rank's rows and which of them have a signal.

        The reward of an answer includes its KL cost.
        """
        rewards, lengths = outcome.rewards.double(), outcome.lengths
        if outcome.penalty is not None:
            rewards = rewards - torch.where(outcome.mask, outcome.penalty, 0.0).double().sum(-1)
        if lengths is None:
            lengths = outcome.mask.sum(-1)
        rows = Gathered(rewards, outcome.group_ids, outcome.valid, lengths)
        groups = Groups(*rows.columns)
        advantages = torch.where(groups.signal, self.of_groups(groups), 0.0)
        return rows.mine(advantages), rows.mine(groups.signal)

    def __call__(self, outcome: Outcome) -> Estimate:
        """Return the advantages of this rank's rows."""
        advantages, _ = self.of_rows(outcome)
        return Estimate(to_tokens(advantages, outcome))


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
        return groups.centered / (groups.std[groups.index] + STD_FLOOR)


class GroupCentered(GroupAdvantage):
    """Mean of the group taken off, scale kept.

    ``A_i = R_i - mean``

    Source: Dr. GRPO, arXiv 2503.20783, section 3.2.
    """

    name: ClassVar[str] = "group-centered"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``R - mean``."""
        return groups.centered


class BatchNormalized(GroupAdvantage):
    """Mean of the group taken off, divided by the standard deviation over the whole batch.

    ``A_i = (R_i - mean) / (std_b + 1e-4)``, std_b the unbiased standard deviation of ``R_i - mean``
    over all answers of the iteration that have a reward. Groups keep their scale relative to each
    other; those without signal count in std_b with zeros.

    Source: ScaleRL, arXiv 2510.13786, section 3.2. Elsewhere: TRL's ``scale_rewards="batch"``
    divides by the standard deviation of the rewards before the means are taken off.
    """

    name: ClassVar[str] = "batch"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``(R - mean) / (std_b + 1e-4)``."""
        centered = torch.where(groups.signal, groups.centered, 0.0)
        return centered / (batch_moments(centered, groups.valid)[1] + STD_FLOOR)


def batch_moments(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased standard deviation of (N,) values over valid rows, both 0-d."""
    count = valid.sum()
    mean = torch.where(valid, values, 0.0).sum() / count.clamp(min=1)
    off = torch.where(valid, values - mean, 0.0)
    return mean, (off.square().sum() / (count - 1).clamp(min=1)).sqrt()


class LeaveOneOut(GroupAdvantage):
    """Each answer against the mean of the others.

    ``A_i = R_i - mean_{j != i} R_j = n / (n - 1) (R_i - mean)``

    Source: RLOO, arXiv 2402.14740, eq. 8.
    """

    name: ClassVar[str] = "leave-one-out"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``n / (n - 1) (R - mean)``."""
        count = groups.count[groups.index]
        return groups.centered * count / (count - 1).clamp(min=1)


class MaxRL(GroupAdvantage):
    """Distance from the group's mean in units of that mean: rare successes weigh most.

    ``A_i = (R_i - mean) / (mean + 1e-6)``; a group that failed throughout gets 0.

    Source: MaxRL, arXiv 2602.02710. For rewards >= 0: a mean below 0 would turn the sign of every
    advantage, so a group that has one is refused.
    """

    name: ClassVar[str] = "maxrl"
    takes_penalty: ClassVar[bool] = False

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``(R - mean) / (mean + 1e-6)``.

        Raises:
            UserError: If a group whose rewards differ has a mean that is not above 0.
        """
        mean = groups.mean[groups.index]
        if bool((bad := groups.signal & (mean <= 0)).any()):
            raise UserError(
                f"MaxRL divides by the mean reward of a group, and one is {float(mean[bad][0]):.4g}"
                "; give rewards that are never negative, or set model.advantage GroupCentered"
            )
        return groups.centered / (mean + 1e-6)


class OPO(GroupAdvantage):
    """Reward minus the baseline of least variance, the mean weighted by length.

    ``A_i = R_i - sum_j l_j R_j / sum_j l_j``, l the length of an answer in tokens as sampled.

    Source: OPO, arXiv 2505.23585, eq. 8. The gradient of a longer answer varies more, so its reward
    counts more in the baseline. Advantages of a group do not add up to 0, nor do they have to.
    """

    name: ClassVar[str] = "opo"

    def of_groups(self, groups: Groups) -> Tensor:
        """Return ``R - sum l R / sum l``."""
        return groups.values - groups.length_weighted_mean[groups.index]
