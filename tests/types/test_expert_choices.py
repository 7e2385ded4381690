"""Experts compared and counted."""

import torch

from rlzoo.types.expert_choices import differing, expert_counts


def test_experts_that_differ_are_counted_as_sets():
    first, second = torch.tensor([[0, 1], [0, 1], [0, 1]]), torch.tensor([[1, 0], [2, 0], [2, 3]])
    assert differing(first, second).tolist() == [0, 1, 2]


def test_weighted_counts_by_layer():
    experts = torch.tensor([[[0, 1], [2, 0]], [[0, 2], [2, 1]]]).to(torch.uint8)
    counts = expert_counts(experts, torch.tensor([1.0, 3.0]), 3)
    assert counts.tolist() == [[4.0, 1.0, 3.0], [1.0, 3.0, 4.0]]
