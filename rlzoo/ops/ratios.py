"""Importance ratios and masked means. Pure; shapes are (N, T) unless said."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Log-ratios are bounded to this before ``exp``, so that no ratio overflows."""


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
    """Length-normalized importance ratio per answer.

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


def unit_ratio(log_probs: Tensor) -> Tensor:
    """``pi / sg[pi]``: 1 in value, with the gradient of ``log_probs``; (N, T)."""
    return bounded_exp(log_probs - log_probs.detach())


def out_of_band(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Where PPO's clip removes the gradient: ``(A>0 & r>1+high) | (A<0 & r<1-low)``."""
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
