"""pass@k, which torchmetrics does not have; means over prompts and ranks are its `MeanMetric`."""

from __future__ import annotations

import torch
from torch import Tensor


def pass_at_k(correct: Tensor, k: int) -> Tensor:
    """Return the chance that at least one of k answers is right, without bias from n >= k drawn.

    ``1 - C(n - c, k) / C(n, k)``, c right answers out of n.

    Source: arXiv 2107.03374, eq. 1.

    Args:
        correct: (P, n) bool.
        k: Number of tries.

    Returns:
        (P,) float64.

    Raises:
        ValueError: If there are fewer than k answers per prompt.
    """
    n = correct.shape[1]
    if n < k:
        raise ValueError(f"pass@{k} needs at least {k} answers per prompt, got {n}")
    wrong = (~correct).sum(-1).double()
    all_wrong = torch.ones_like(wrong)
    for i in range(k):
        all_wrong = all_wrong * ((wrong - i).clamp(min=0) / (n - i))
    return 1 - all_wrong
