"""Weighted running statistics: each is summed where it arises and divided once, at the end."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rlzoo import distributed

Number = Tensor | float | int


def _scalar(name: str, value: Number) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=torch.float64)
    if value.ndim:
        raise ValueError(f"stats: {name} must be a scalar, got shape {tuple(value.shape)}")
    return value.detach().double()


class Stats:
    """Sums with their weights, and extremes, that merge over micro-batches, updates and ranks.

    ``mean = sum of values / sum of weights``, never a mean of means.

    Example:
        Two windows, 4 values of mean 1 and 2 values of mean 3, give ``(4 + 6) / 6``, not 2.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}
        self.extremes: dict[str, Tensor] = {}

    def add(self, name: str, total: Number, weight: Number) -> None:
        """Add a sum and the weight it is to be divided by.

        Args:
            name: Metric name.
            total: 0-d sum of the values.
            weight: 0-d count of the values.

        Raises:
            ValueError: If either is not a scalar, which is how a broadcast mistake shows.
        """
        new = _scalar(name, total), _scalar(name, weight)
        old = self.sums.get(name)
        self.sums[name] = (old[0] + new[0], old[1] + new[1]) if old else new

    def add_masked(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add the values under a mask of the same shape.

        Raises:
            ValueError: If the shapes differ, which is how a broadcast mistake shows.
        """
        if values.shape != mask.shape:
            raise ValueError(f"stats: {name} is {values.shape} but its mask is {mask.shape}")
        values = values.detach().double()
        self.add(name, torch.where(mask, values, 0.0).sum(), mask.sum())

    def maximum(self, name: str, value: Number) -> None:
        """Keep the largest value seen under this name."""
        new = _scalar(name, value)
        self.extremes[name] = torch.maximum(self.extremes.get(name, new), new)

    def merge(self, others: Iterable[Stats]) -> Stats:
        """Add other statistics to these and return these."""
        for other in others:
            for name, (total, weight) in other.sums.items():
                self.add(name, total, weight)
            for name, value in other.extremes.items():
                self.maximum(name, value)
        return self

    def cpu(self) -> Stats:
        """Return a copy whose tensors are on the CPU."""
        copy = Stats()
        copy.sums = {k: (total.cpu(), weight.cpu()) for k, (total, weight) in self.sums.items()}
        copy.extremes = {k: value.cpu() for k, value in self.extremes.items()}
        return copy

    def means(self) -> dict[str, float]:
        """Return every mean and extreme as a float; a mean of nothing is left out."""
        means = {k: float(total / w) for k, (total, w) in self.sums.items() if float(w) > 0}
        return means | {name: float(value) for name, value in self.extremes.items()}


def over_ranks(stats: Stats) -> Stats:
    """Return the statistics of all ranks as one; every rank has to call it."""
    return Stats().merge(distributed.gather_objects(stats.cpu()))
