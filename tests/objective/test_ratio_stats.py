"""Spread of token and sequence log-ratios, over all answers and by length."""

from __future__ import annotations

import math

import torch

from rlzoo.objective.ratio_stats import finish_spread, spread_stats
from rlzoo.types.stats import Stats


def test_token_and_sequence_spread_by_hand():
    log_ratio = torch.tensor([[0.1, -0.3, 9.0], [0.2, 9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    means = finish_spread(spread_stats(torch.where(mask, log_ratio, 0.0), mask).means())
    tokens = torch.tensor([0.1, -0.3, 0.2], dtype=torch.float64)
    sequences = torch.tensor([-0.1, 0.2], dtype=torch.float64)
    assert math.isclose(means["policy/token_log_ratio_std"], tokens.std(correction=0))
    assert math.isclose(means["policy/sequence_log_ratio_std"], sequences.std(correction=0))
    assert math.isclose(means["policy/spread/token_1_7"], tokens.std(correction=0))
    assert not [name for name in means if ":" in name]


def test_sequence_noise_falls_with_the_root_of_the_length_and_token_noise_does_not():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4] * 2000 + [64] * 2000)
    mask = torch.arange(64) < lengths[:, None]
    log_ratio = 0.02 * torch.randn(4000, 64, generator=generator, dtype=torch.float64)
    noise = torch.where(mask, log_ratio, 0.0)
    parts = [spread_stats(noise[i::3], mask[i::3]) for i in range(3)]  # merges over micro-batches
    means = finish_spread(Stats().merge(parts).means())
    assert math.isclose(means["policy/spread/token_1_7"], 0.02, rel_tol=0.05)
    assert math.isclose(means["policy/spread/token_32_127"], 0.02, rel_tol=0.05)
    assert math.isclose(means["policy/spread/sequence_1_7"], 0.02 / 2, rel_tol=0.05)
    assert math.isclose(means["policy/spread/sequence_32_127"], 0.02 / 8, rel_tol=0.05)
