"""Covariance of advantage and log-probability over the tokens of all ranks; collectives."""

from __future__ import annotations

import torch
from torch import Tensor

from rlzoo import distributed


def covariance(advantages: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    """Each token's share of the covariance of advantage and log-probability, detached.

    ``(A_t - mean A) (log_probs_t - mean log_probs)``, means over the given tokens of all ranks.

    Source: arXiv 2505.22617, section 4. A collective: every rank has to call it.

    Args:
        advantages: (N, T).
        log_probs: (N, T).
        mask: (N, T) bool.

    Returns:
        (N, T) float64, 0 where masked.
    """
    centered = []
    for values in (advantages.detach(), log_probs.detach()):
        kept = values[mask].double()
        total, count = distributed.sum_over_ranks(torch.stack([kept.sum(), mask.sum().double()]))
        centered.append(values.double() - total / count.clamp(min=1))
    return torch.where(mask, centered[0] * centered[1], 0.0)


def largest_share(values: Tensor, eligible: Tensor, mask: Tensor, share: float) -> Tensor:
    """Mark the ``max(1, int(share * tokens))`` tokens of all ranks whose value is largest.

    A collective: every rank has to call it.

    Args:
        values: (N, T).
        eligible: (N, T) bool, tokens that may be marked.
        mask: (N, T) bool, tokens of which the share is taken.
        share: Between 0 and 1.

    Returns:
        (N, T) bool; fewer if not enough are eligible, all equals of the last one if there are any.
    """
    wanted = max(1, int(share * int(distributed.sum_over_ranks(mask.sum()))))
    mine = values[eligible]
    best = mine.topk(min(wanted, len(mine))).values.cpu()
    every = torch.cat(distributed.gather_objects(best))
    if not len(every):
        return torch.zeros_like(eligible)
    least = every.topk(min(wanted, len(every))).values[-1]
    return eligible & (values >= least.to(values.device))
