"""GTPO: what good and bad answers have in common is not punished."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate, Unit
from rlzoo.ops import Aggregation, masked_mean, unit_ratio
from rlzoo.types import PolicyBatch


class GTPO(Algorithm):
    """Group-relative trajectory-based policy optimization: conflicts and entropy, no ratio.

    ``J = (1/N) sum_i delta_i / |y_i| sum_t (A_it - entropy_penalty h_i) lambda_it pi / sg[pi]``;
    lambda: a factor of 0 in bad answers, ``conflict_weight`` in good ones, for each run of tokens
    from the start or from the end that a good and a bad answer share place for place; 1 elsewhere;
    delta = 0 where ``h_i``, the detached mean entropy, is above ``entropy_cap``.

    Source: arXiv 2508.03772. Against GRPO: no ratio, clip or reference; what bad answers share with
    good ones is not punished. Elsewhere: the authors' code also divides by the number of conflicts.

    Args:
        entropy_penalty: Taken off the advantage per nat of mean entropy.
        conflict_weight: Weight of a shared token in a good answer.
        entropy_cap: Nats (ln 2) above which an answer is left out; inf if the model starts there.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"
    needs: ClassVar[frozenset[str]] = frozenset({"entropy", "token_ids", "group_ids"})
    unit: ClassVar[Unit] = "group"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(
        self, entropy_penalty: float = 0.1, conflict_weight: float = 2.0, entropy_cap: float = 0.693
    ) -> None:
        self.entropy_penalty = self.non_negative("entropy_penalty", entropy_penalty)
        self.conflict_weight = self.non_negative("conflict_weight", conflict_weight)
        self.entropy_cap = self.non_negative("entropy_cap", entropy_cap)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return 1 with the gradient of log_probs, (N, T)."""
        return unit_ratio(batch.log_probs)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return the weighted ratio; answers of high entropy are left out."""
        assert batch.entropy is not None
        assert batch.token_ids is not None
        assert batch.group_ids is not None
        entropy = masked_mean(batch.entropy.detach(), batch.mask)
        sign = masked_mean(batch.advantages, batch.mask).sign()
        runs = shared_runs(batch.token_ids, batch.mask, batch.group_ids, sign)
        base = torch.where(sign > 0, self.conflict_weight, torch.where(sign < 0, 0.0, 1.0))
        weight = (base**runs).to(ratio.dtype) * (entropy <= self.entropy_cap)
        objective = (batch.advantages - self.entropy_penalty * entropy) * weight * ratio
        return Surrogate(objective, (entropy > self.entropy_cap).expand_as(batch.mask))


def shared_runs(token_ids: Tensor, mask: Tensor, group_ids: Tensor, sign: Tensor) -> Tensor:
    """Count the runs that a token is in: of tokens that good and bad answers to a prompt share.

    A run goes from an answer's start, or back from its end, for as long as every token stands at
    the same place of a positive and of a negative answer of the group.

    Source: GTPO, arXiv 2508.03772.

    Args:
        token_ids: (N, T) long.
        mask: (N, T) bool, right-padded.
        group_ids: (N,) long.
        sign: (N, 1), 1 for a good answer, -1 for a bad one, 0 for neither.

    Returns:
        (N, T) long, 0 to 2.
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    mirror = (mask.sum(-1, keepdim=True) - 1 - place).clamp(min=0)
    ids = torch.where(mask, token_ids, 0)
    runs = []
    for order in (place.expand_as(mask), mirror):
        at_place = (group_ids[:, None] * len(place) + place) * (ids.max() + 1)
        _, same = torch.unique(at_place + ids.gather(1, order), return_inverse=True)
        seen = [same[mask & (sign == side)].bincount(minlength=same.numel()) for side in (1, -1)]
        shared = (seen[0] > 0) & (seen[1] > 0)
        run = (shared[same] & mask & (sign != 0)).long().cumprod(-1)
        runs.append(torch.where(mask, run.gather(1, order), 0))
    return runs[0] + runs[1]
