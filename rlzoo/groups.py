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
    """

    def __init__(self, values: Tensor, group_ids: Tensor, valid: Tensor) -> None:
        _, self.index = torch.unique(group_ids, return_inverse=True)
        size = int(self.index.max()) + 1 if len(group_ids) else 0
        self.values = torch.where(valid, values.double(), 0.0)
        zeros = self.values.new_zeros(size)
        self.count = zeros.index_add(0, self.index, valid.double())
        self.mean = zeros.index_add(0, self.index, self.values) / self.count.clamp(min=1)
        off = torch.where(valid, self.values - self.mean[self.index], 0.0)
        variance = zeros.index_add(0, self.index, off.square()) / (self.count - 1).clamp(min=1)
        self.std = variance.sqrt()
        infinity = torch.full_like(zeros, torch.inf)
        low = torch.where(valid, self.values, torch.inf)
        high = torch.where(valid, self.values, -torch.inf)
        smallest = infinity.scatter_reduce(0, self.index, low, "amin")
        largest = (-infinity).scatter_reduce(0, self.index, high, "amax")
        self.constant = smallest >= largest
        self.signal = valid & ~self.constant[self.index]
