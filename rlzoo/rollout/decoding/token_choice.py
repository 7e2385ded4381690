"""The choice of a token: the inverse of the cumulative distribution, in two levels."""

from __future__ import annotations

import torch
from torch import Tensor

from rlzoo.types import SamplingParams

_BLOCK_FLOATS = 2**22  # logits drawn from at a time: bounds the copies that drawing makes
_WIDTH = 128
_SHORT = 1024


def draw(logits: Tensor, uniforms: Tensor | None, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Pick one token per row by inverting the cumulative distribution.

    Args:
        logits: (rows, V) fp32.
        uniforms: (rows,) float64 in [0, 1), or None for the most likely token.
        params: Temperature and filters.

    Returns:
        (rows,) tokens and (rows,) fp32 log-probs under the unfiltered softmax at the temperature.
    """
    rows, size = logits.shape
    tokens, log_probs = logits.new_empty(rows, dtype=torch.long), logits.new_empty(rows)
    block = max(1, _BLOCK_FLOATS // size)
    for start in range(0, rows, block):
        part = slice(start, start + block)
        u = None if uniforms is None else uniforms[part]
        tokens[part], log_probs[part] = _draw(logits[part], u, params)
    return tokens, log_probs


def _draw(logits: Tensor, uniforms: Tensor | None, params: SamplingParams) -> tuple[Tensor, Tensor]:
    if params.temperature not in (0.0, 1.0):
        logits = logits / params.temperature
    largest = logits.amax(-1, keepdim=True)
    weights = (logits - largest).exp_()
    sums = _sums(weights)
    if uniforms is None:
        tokens = logits.argmax(-1)
    else:
        chosen = _filtered(weights, params)
        tokens = _invert(chosen, uniforms, sums if chosen is weights else _sums(chosen))
    log_normalizer = largest.squeeze(-1) + sums.sum(-1).log().float()
    return tokens, logits.gather(-1, tokens[:, None]).squeeze(-1) - log_normalizer


def _sums(weights: Tensor) -> Tensor:
    """Sum runs of `_WIDTH` columns, (rows, runs) float64; a short row is not cut up."""
    size = weights.shape[-1]
    if size <= _SHORT:
        return weights.double()
    whole = size - size % _WIDTH
    sums: Tensor = weights[:, :whole].view(len(weights), -1, _WIDTH).sum(-1)
    if whole < size:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], -1)
    return sums.double()


def _invert(weights: Tensor, uniforms: Tensor, sums: Tensor) -> Tensor:
    size = weights.shape[-1]
    # In float64: a float32 sum over a vocabulary would drop the mass of rare tokens.
    cumulative = sums.cumsum(-1)
    target = _below(uniforms[:, None] * cumulative[:, -1:], cumulative[:, -1:])
    run = _first_above(cumulative, target)
    if size <= _SHORT:
        return run.squeeze(-1)
    target = target - (cumulative - sums).gather(-1, run)
    columns = run * _WIDTH + torch.arange(_WIDTH, device=weights.device)
    inside = weights.gather(-1, columns.clamp_max(size - 1)).double()
    inside = inside.masked_fill_(columns >= size, 0.0).cumsum_(-1)
    chosen = _first_above(inside, _below(target, inside[:, -1:]))
    return columns.gather(-1, chosen).squeeze(-1).clamp_max(size - 1)


def _below(target: Tensor, total: Tensor) -> Tensor:
    """Keep a target strictly below the total, so that an entry above it has mass of its own."""
    return torch.minimum(target, total.nextafter(torch.zeros_like(total)))


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    # Only a row of NaN gets past the end.
    found = torch.searchsorted(cumulative, target, right=True)
    return found.clamp_max(cumulative.shape[-1] - 1)


def _filtered(weights: Tensor, params: SamplingParams) -> Tensor:
    """Set to 0 what top_k and top_p leave out."""
    if params.top_k == 0 and params.top_p >= 1:
        return weights
    ordered, order = weights.sort(stable=True, dim=-1, descending=True)
    if params.top_k:
        ordered[:, params.top_k :] = 0
    if params.top_p < 1:
        before = ordered.double().cumsum(-1) - ordered
        ordered = ordered.where(before < params.top_p * ordered.double().sum(-1, keepdim=True), 0)
    return torch.zeros_like(weights).scatter(-1, order, ordered)
