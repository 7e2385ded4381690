"""GDPO: every reward is normalized by itself before rewards are added."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.advantages.base import Advantage, Estimate, Outcome
from rlzoo.advantages.group import STD_FLOOR, Gathered, batch_moments, to_tokens
from rlzoo.advantages.groups import Groups


class GDPO(Advantage):
    """Each reward normalized in its group, then added by weight, then normalized over the batch.

    ``a_ik = (R_ik - mean_k) / (std_k + 1e-4)`` per group, ``s_i = sum_k w_k a_ik``,
    ``A_i = (s_i - mean_b) / (std_b + 1e-4)`` over all answers with a reward;
    standard deviations are unbiased. A reward that is equal throughout a group gives 0 there, and
    one that abstained on an answer leaves its own statistics and adds 0.

    Source: GDPO, arXiv 2601.05242. Summed first, rewards (1, 0) and (0, 1) are one reward of 1 to a
    group estimator; here each keeps its own scale, so weights mean what they say.
    """

    name: ClassVar[str] = "gdpo"
    by_group: ClassVar[bool] = True
    takes_penalty: ClassVar[bool] = False
    minimum_group: int = 2

    def of_components(
        self, components: Tensor, weights: Tensor, group_ids: Tensor, valid: Tensor
    ) -> Tensor:
        """Return (N,) float64 advantages of all ranks' rows.

        Args:
            components: (N, K), NaN where a reward abstained.
            weights: (K,).
            group_ids: (N,) long.
            valid: (N,) bool.
        """
        total = torch.zeros(len(valid), dtype=torch.float64)
        for groups, weight in _columns(components, weights, group_ids, valid):
            normal = groups.centered / (groups.std[groups.index] + STD_FLOOR)
            total = total + weight * torch.where(groups.signal, normal, 0.0)
        mean, std = batch_moments(total, valid)
        signal = _signal(components, weights, group_ids, valid)
        return torch.where(signal, (total - mean) / (std + STD_FLOOR), 0.0)

    def __call__(self, outcome: Outcome) -> Estimate:
        """Return the advantages of this rank's rows."""
        components, weights = _given(outcome)
        rows = Gathered(components, outcome.group_ids, outcome.valid)
        every, group_ids, valid = rows.columns
        advantages = self.of_components(every, weights.cpu(), group_ids, valid)
        return Estimate(to_tokens(rows.mine(advantages), outcome))

    def rows_with_signal(self, outcome: Outcome) -> tuple[Tensor, int, int]:
        """Tell which rows belong to a group in which any weighted reward differs."""
        components, weights = _given(outcome)
        signal = _signal(components, weights, outcome.group_ids, outcome.valid)
        live = Groups(signal.double(), outcome.group_ids, signal).count > 0
        return signal, int((~live).sum()), len(live)


def _given(outcome: Outcome) -> tuple[Tensor, Tensor]:
    if outcome.components is None or outcome.weights is None:
        raise ValueError("GDPO: the outcome carries no components and weights")
    return outcome.components.double(), outcome.weights.double()


def _columns(
    components: Tensor, weights: Tensor, group_ids: Tensor, valid: Tensor
) -> list[tuple[Groups, float]]:
    """Return statistics and weight of each reward that counts."""
    pairs = zip(components.unbind(1), weights.tolist(), strict=True)
    return [(Groups(x, group_ids, valid & ~x.isnan()), w) for x, w in pairs if w != 0]


def _signal(components: Tensor, weights: Tensor, group_ids: Tensor, valid: Tensor) -> Tensor:
    """Return (N,) bool, valid rows of groups in which some reward that counts differs."""
    differs = torch.zeros(len(valid), dtype=torch.float64, device=valid.device)
    for groups, _ in _columns(components, weights, group_ids, valid):
        differs = differs + groups.signal.double()
    every = Groups(differs, group_ids, torch.ones_like(valid))
    return valid & (every.mean[every.index] > 0)
