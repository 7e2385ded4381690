"""Aggregation: the weights that turn token losses into one number, and their denominators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.errors import UserError, nearest

Aggregation = Literal[
    "token-mean", "sequence-mean", "sequence-sum", "constant-length", "prompt-mean"
]


@dataclass(frozen=True)
class Denominators:
    """What one optimizer step divides by, counted over all its micro-batches and ranks.

    Attributes:
        tokens: Tokens that train.
        sequences: Answers with at least one such token.
        groups: Prompts with at least one such token.
        group_tokens: (P,) tokens per prompt, indexed by ``group_ids``.
    """

    tokens: int
    sequences: int
    groups: int
    group_tokens: Tensor

    @classmethod
    def count(cls, mask: Tensor, group_ids: Tensor | None = None) -> Denominators:
        """Count over the given rows of every rank.

        Args:
            mask: (N, T) bool, this rank's rows of the step.
            group_ids: (N,) long, global prompt positions, or None for one prompt per row.

        Returns:
            The same denominators on every rank.
        """
        lengths = mask.sum(-1)
        if group_ids is None:
            group_ids = torch.arange(len(mask), device=mask.device)
        highest = int(group_ids.max()) + 1 if len(group_ids) else 0
        num_groups = distributed.max_over_ranks(highest, mask.device)
        group_tokens = torch.zeros(num_groups, dtype=torch.long, device=mask.device)
        group_tokens = distributed.sum_over_ranks(group_tokens.index_add(0, group_ids, lengths))
        counts = distributed.sum_over_ranks(torch.stack([lengths.sum(), (lengths > 0).sum()]))
        return cls(
            tokens=int(counts[0]),
            sequences=int(counts[1]),
            groups=int((group_tokens > 0).sum()),
            group_tokens=group_tokens,
        )


def aggregation_weights(
    mask: Tensor,
    denominators: Denominators,
    aggregation: Aggregation,
    *,
    length: int = 1,
    group_ids: Tensor | None = None,
) -> Tensor:
    """Weight of each token in the loss, so that ``loss = sum(weights * token_loss)``.

    ``token-mean`` 1 / tokens; ``sequence-mean`` 1 / (sequences * |y|); ``sequence-sum``
    1 / sequences; ``constant-length`` 1 / (sequences * length); ``prompt-mean``
    1 / (groups * tokens of the row's group). The weights of a step add up over micro-batches and
    ranks, whatever the cut; nothing to train on gives weights of 0, not NaN.

    Args:
        mask: (N, T) bool.
        denominators: Counts of the whole optimizer step.
        aggregation: Which mean.
        length: The constant of ``constant-length``; a setting, never a padded width.
        group_ids: (N,) long, needed by ``prompt-mean``.

    Returns:
        (N, T) float64, 0 where masked.

    Raises:
        UserError: If there is no such mean.
    """
    choices: list[str] = list(get_args(Aggregation))
    if aggregation not in choices:
        raise UserError(f"aggregation '{aggregation}' is unknown; {nearest(aggregation, choices)}")
    sequences = max(1, denominators.sequences)
    rows = mask.new_ones(len(mask), dtype=torch.float64)
    if aggregation == "token-mean":
        rows = rows / max(1, denominators.tokens)
    elif aggregation == "sequence-mean":
        rows = rows / (sequences * mask.sum(-1).clamp(min=1))
    elif aggregation == "sequence-sum":
        rows = rows / sequences
    elif aggregation == "constant-length":
        rows = rows / (sequences * length)
    else:
        if group_ids is None:
            raise ValueError("aggregation_weights: prompt-mean needs group_ids")
        live = mask.any(-1)  # a padding pass may hold a prompt that the step has not
        tokens = denominators.group_tokens.new_ones(len(mask))
        tokens[live] = denominators.group_tokens[group_ids[live]]
        rows = rows / (max(1, denominators.groups) * tokens)
    return torch.where(mask, rows[:, None], 0.0)
