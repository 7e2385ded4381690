"""Statistics of the groups of answers to one prompt."""

from __future__ import annotations

import torch
from torch import Tensor


class Groups:
    """Per-group statistics of a vector, in float64, over valid rows.

    Args:
        values: (N,).
        group_ids: (N,) long.
        valid: (N,) bool.
        lengths: (N,) weights of ``length_weighted_mean``; equal if None.
    """

    def __init__(
        self, values: Tensor, group_ids: Tensor, valid: Tensor, lengths: Tensor | None = None
    ) -> None:
        _, self.index = torch.unique(group_ids, return_inverse=True)
        self.size = int(self.index.max()) + 1 if len(group_ids) else 0
        self.valid = valid
        self.values = torch.where(valid, values.double(), 0.0)
        self._lengths = valid.double() if lengths is None else lengths.double()
        self.count = self._sum(valid.double())
        self.mean = self._sum(self.values) / self.count.clamp(min=1)
        self.centered = torch.where(valid, self.values - self.mean[self.index], 0.0)
        self.std = (self._sum(self.centered.square()) / (self.count - 1).clamp(min=1)).sqrt()
        infinity = torch.full_like(self.mean, torch.inf)
        low = torch.where(valid, self.values, torch.inf)
        high = torch.where(valid, self.values, -torch.inf)
        smallest = infinity.scatter_reduce(0, self.index, low, "amin")
        largest = (-infinity).scatter_reduce(0, self.index, high, "amax")
        self.constant = smallest >= largest
        self.signal = valid & ~self.constant[self.index]

    @property
    def length_weighted_mean(self) -> Tensor:
        """(groups,) mean weighted by length; 0 for a group whose answers are all empty."""
        lengths = torch.where(self.valid, self._lengths, 0.0)
        return self._sum(lengths * self.values) / self._sum(lengths).clamp(min=1)

    def _sum(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(self.size).index_add(0, self.index, rows)
