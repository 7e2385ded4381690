"""Pure tensor functions shared by objectives and advantages. Shapes are (N, T) unless said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rlzoo import ranks
from rlzoo.errors import UserError, nearest

LOG_RATIO_BOUND = 20.0
"""Log-ratios are bounded to this before ``exp``, so that no ratio overflows."""

Aggregation = Literal[
    "token-mean", "sequence-mean", "sequence-sum", "constant-length", "prompt-mean"
]
KLEstimator = Literal["k1", "k2", "k3"]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the last axis where the mask is True; 0 for a row with no True.

    ``sum_t m_t x_t / max(1, sum_t m_t)``, added up in float64 so that the padded width, which sets
    the order of the sum, does not show in the result.

    Args:
        values: (..., T); masked slots may hold NaN or inf.
        mask: (..., T) bool.

    Returns:
        (..., 1).
    """
    total = torch.where(mask, values, 0.0).double().sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1)).to(values.dtype)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over the last axis where the mask is True, as ``masked_mean``; (..., 1)."""
    return torch.where(mask, values, 0.0).double().sum(-1, keepdim=True).to(values.dtype)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """``exp(clamp(x, -20, 20))``: finite in value and gradient, unchanged for healthy ratios."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def token_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Importance ratio per token, ``r_t = exp(log_probs_t - old_log_probs_t)``, (N, T)."""
    return bounded_exp(log_probs - old_log_probs)


def sequence_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Length-normalised importance ratio per answer.

    ``s = exp( (1/|y|) sum_t (log_probs_t - old_log_probs_t) )``

    Source: GSPO, arXiv 2507.18071, eq. 7.

    Args:
        log_probs: (N, T).
        old_log_probs: (N, T).
        mask: (N, T) bool; |y| is the number of True.

    Returns:
        (N, 1); 1 for an empty answer.
    """
    return bounded_exp(masked_mean(log_probs - old_log_probs, mask))


def product_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Importance ratio of a whole answer, ``W = exp( sum_t (log_probs_t - old_log_probs_t) )``.

    Args:
        log_probs: (N, T).
        old_log_probs: (N, T).
        mask: (N, T) bool.

    Returns:
        (N, 1); 1 for an empty answer.
    """
    return bounded_exp(masked_sum(log_probs - old_log_probs, mask))


def score_ratio(log_probs: Tensor) -> Tensor:
    """``pi / sg[pi]``: 1 in value, with the gradient of ``log_probs``; (N, T)."""
    return bounded_exp(log_probs - log_probs.detach())


def out_of_band(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Where PPO's clip removes the gradient: ``(A>0 & r>1+high) | (A<0 & r<1-low)``."""
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


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
    centred = []
    for values in (advantages.detach(), log_probs.detach()):
        kept = values[mask].double()
        total, count = ranks.sum_over_ranks(torch.stack([kept.sum(), mask.sum().double()]))
        centred.append(values.double() - total / count.clamp(min=1))
    return torch.where(mask, centred[0] * centred[1], 0.0)


def largest_share(scores: Tensor, eligible: Tensor, mask: Tensor, share: float) -> Tensor:
    """Mark the tokens of all ranks whose score is largest, ``max(1, int(share * tokens))`` of them.

    A collective: every rank has to call it.

    Args:
        scores: (N, T).
        eligible: (N, T) bool, tokens that may be marked.
        mask: (N, T) bool, tokens of which the share is taken.
        share: Between 0 and 1.

    Returns:
        (N, T) bool; fewer if not enough are eligible, all equals of the last one if there are any.
    """
    wanted = max(1, int(share * int(ranks.sum_over_ranks(mask.sum()))))
    mine = scores[eligible]
    best = mine.topk(min(wanted, len(mine))).values.cpu()
    every = torch.cat(ranks.gather_objects(best))
    if not len(every):
        return torch.zeros_like(eligible)
    least = every.topk(min(wanted, len(every))).values[-1]
    return eligible & (scores >= least.to(scores.device))


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Per-token estimate of ``KL(policy || reference)`` from one sampled token.

    With ``u = ref_log_probs - log_probs``: ``k1 = -u``, ``k2 = u^2 / 2``, ``k3 = exp(u) - u - 1``.
    Gradients with respect to ``log_probs``: 1 (no pull), ``-u``, ``1 - exp(u)``.

    Source: http://joschu.net/blog/kl-approx.html; k3 as in GRPO, arXiv 2402.03300, eq. 4.

    Args:
        log_probs: (N, T).
        ref_log_probs: (N, T).
        estimator: Which of the three.

    Returns:
        (N, T).
    """
    u = ref_log_probs - log_probs
    if estimator == "k1":
        return -u
    u = u.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return 0.5 * u.square() if estimator == "k2" else u.exp() - u - 1


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
        num_groups = ranks.max_over_ranks(highest, mask.device)
        group_tokens = torch.zeros(num_groups, dtype=torch.long, device=mask.device)
        group_tokens = ranks.sum_over_ranks(group_tokens.index_add(0, group_ids, lengths))
        counts = ranks.sum_over_ranks(torch.stack([lengths.sum(), (lengths > 0).sum()]))
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
    1 / sequences; ``constant-length`` 1 / (sequences * L); ``prompt-mean``
    1 / (groups * tokens of the row's group). The weights of a step add up over micro-batches and
    ranks, whatever the cut; nothing to train on gives weights of 0, not NaN.

    Args:
        mask: (N, T) bool.
        denominators: Counts of the whole optimizer step.
        aggregation: Which mean.
        length: L, the constant of ``constant-length``; a setting, never a padded width.
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
