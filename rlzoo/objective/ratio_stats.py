"""The scatter of log-ratios, by token and by answer, also against answer length."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from rlzoo.ops import masked_mean
from rlzoo.types.stats import Stats

EDGES = (1, 8, 32, 128, 512, 2048, 1 << 30)
"""Answer lengths, in tokens, at which a bucket begins."""


def spread_stats(log_ratio: Tensor, mask: Tensor) -> Stats:
    """Return the moments of token and sequence log-ratios, over all answers and by length.

    The sequence log-ratio is the mean over the answer, ``log s_i`` of GSPO.

    Args:
        log_ratio: (N, T), 0 where masked.
        mask: (N, T) bool.

    Returns:
        Raw moments, which merge; ``finish_spread`` turns them into standard deviations.
    """
    stats, lengths = Stats(), mask.sum(-1)
    sequence = masked_mean(log_ratio, mask).squeeze(-1)
    _moments(stats, "policy/token_log_ratio_std", log_ratio, mask)
    _moments(stats, "policy/sequence_log_ratio_std", sequence, lengths > 0)
    for low, high in pairwise(EDGES):
        rows = (lengths >= low) & (lengths < high)
        if bool(rows.any()):
            bucket = f"{low}_{high - 1}" if high < EDGES[-1] else f"{low}_up"
            _moments(stats, f"policy/spread/token_{bucket}", log_ratio, mask & rows[:, None])
            _moments(stats, f"policy/spread/sequence_{bucket}", sequence, rows)
    return stats


def finish_spread(means: dict[str, float]) -> dict[str, float]:
    """Turn raw moments into standard deviations.

    ``policy/token_log_ratio_std``, ``policy/sequence_log_ratio_std``, and one per bucket under
    ``policy/spread/``.

    Args:
        means: Merged means, changed in place.

    Returns:
        The same dictionary.
    """
    for raw in [name for name in means if name.endswith(_SQUARE)]:
        name = raw.removesuffix(_SQUARE)
        means[name] = math.sqrt(max(0.0, means.pop(raw) - means.pop(name + _MEAN) ** 2))
    return means


_SQUARE, _MEAN = ":square", ":mean"


def _moments(stats: Stats, name: str, values: Tensor, mask: Tensor) -> None:
    # A square less a squared mean cancels: float32 would leave noise where the deviation is small.
    values = torch.where(mask, values.detach().double(), 0.0)
    stats.add(name + _MEAN, values.sum(), mask.sum())
    stats.add(name + _SQUARE, values.square().sum(), mask.sum())
