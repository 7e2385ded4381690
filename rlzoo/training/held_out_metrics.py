"""Held-out metrics as torchmetrics: exact over ranks, weighted by prompt."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class AverageAtK(Metric):
    """Mean share of right answers among the k drawn for each prompt: avg@k.

    ``mean over prompts of (c / k)``, c right answers out of k.
    """

    higher_is_better = True
    full_state_update = False
    total: Tensor
    prompts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("prompts", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, correct: Tensor) -> None:
        """Add prompts.

        Args:
            correct: (P, k) bool.
        """
        self.total += correct.double().mean(-1).sum()
        self.prompts += len(correct)

    def compute(self) -> Tensor:
        """Return the mean, NaN before the first prompt."""
        return (self.total / self.prompts).float()


class PassAtK(Metric):
    """Chance that at least one of k answers is right, estimated without bias from n >= k drawn.

    ``mean over prompts of 1 - C(n - c, k) / C(n, k)``, c right answers out of n.

    Source: arXiv 2107.03374, eq. 1.

    Args:
        k: Number of tries.
    """

    higher_is_better = True
    full_state_update = False
    total: Tensor
    prompts: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("prompts", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, correct: Tensor) -> None:
        """Add prompts.

        Args:
            correct: (P, n) bool, n >= k.

        Raises:
            ValueError: If there are fewer than k answers per prompt.
        """
        n = correct.shape[1]
        if n < self.k:
            raise ValueError(f"pass@{self.k} needs at least {self.k} answers per prompt, got {n}")
        wrong = (~correct).sum(-1).double()
        all_wrong = torch.ones_like(wrong)
        for i in range(self.k):
            all_wrong = all_wrong * ((wrong - i).clamp(min=0) / (n - i))
        self.total += (1 - all_wrong).sum()
        self.prompts += len(correct)

    def compute(self) -> Tensor:
        """Return the mean, NaN before the first prompt."""
        return (self.total / self.prompts).float()
