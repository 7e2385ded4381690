"""Estimates of a KL divergence from one sampled token. Pure; shapes are (N, T)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rlzoo.ops.ratios import LOG_RATIO_BOUND

KLEstimator = Literal["k1", "k2", "k3"]


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
