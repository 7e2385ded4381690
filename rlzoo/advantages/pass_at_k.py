"""Training for pass@k: a set of k answers is right if one of them is."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.advantages.group import GroupAdvantage
from rlzoo.advantages.groups import Groups
from rlzoo.errors import UserError


class PassAtKAdvantage(GroupAdvantage):
    """Advantage of an answer as a member of random sets of k answers, of which one must be right.

    With n answers to a prompt, of which f are wrong, ``q = C(f, k) / C(n, k)`` is the chance that a
    set of k has no right one, and the reward of a set has mean 1 - q and standard deviation
    ``sigma = sqrt(q (1 - q))``. Averaged over the sets that an answer is in, a right answer gets
    ``A = q / sigma`` and a wrong one ``A = (q - C(f - 1, k - 1) / C(n - 1, k - 1)) / sigma``. They
    add up to 0 over a group; a prompt that is often right counts little, and one of f < k nothing.

    Source: Pass@k training, arXiv 2508.10751, eq. 14 and 15. With k = 1 it is ``group`` with the
    population's standard deviation. Rewards must be 0 or 1.

    Args:
        k: Size of the sets; ``group_size`` must be larger.
    """

    name: ClassVar[str] = "pass@k"
    takes_penalty: ClassVar[bool] = False

    def __init__(self, k: int = 4) -> None:
        if k < 1:
            raise UserError(f"PassAtKAdvantage: k must be >= 1, got {k}")
        self.k, self.minimum_group = k, k + 1

    def of_groups(self, groups: Groups) -> Tensor:
        """Return the analytic advantages.

        Raises:
            UserError: If a reward is neither 0 nor 1.
        """
        rewards = groups.values
        if bool((bad := (rewards != 0) & (rewards != 1)).any()):
            raise UserError(
                f"PassAtKAdvantage: a reward is {float(rewards[bad][0]):.4g}; it reads only 0 and "
                "1, so use one reward of right or wrong with weight 1, or another model.advantage"
            )
        n, f = groups.count, groups.count * (1 - groups.mean)
        q = given_wrong = torch.ones_like(n)
        for j in range(self.k):
            share = (f - j).round().clamp(min=0) / (n - j).clamp(min=1)
            q = q * share
            given_wrong = given_wrong * share if j else given_wrong
        sigma = (q * (1 - q)).sqrt()
        live = sigma > 0
        sigma = torch.where(live, sigma, 1.0)
        right = torch.where(live, q / sigma, 0.0)
        wrong = torch.where(live, (q - given_wrong) / sigma, 0.0)
        return torch.where(rewards == 1, right[groups.index], wrong[groups.index])
