"""rlzoo's own sampler: plain PyTorch, any causal language model of transformers.

One prefill per prompt, its keys and values repeated for the answers, finished answers leaving the
batch, and one seeded stream of random numbers per answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.rollout.base import Sampler, check_request
from rlzoo.types import Prompts, Rollouts, SamplingParams

_BLOCK_FLOATS = 2**24


class NativeSampler(Sampler):
    """Samples with the training weights, in this process.

    Args:
        max_batch_size: Most answers that are decoded at the same time.
    """

    def __init__(self, max_batch_size: int = 512) -> None:
        if max_batch_size < 1:
            raise UserError(
                f"NativeSampler: max_batch_size must be at least 1, not {max_batch_size}"
            )
        self.max_batch_size = max_batch_size

    def sample(
        self, policy: Policy, prompts: Prompts, num_samples: int, params: SamplingParams, seed: int
    ) -> Rollouts:
        """Draw answers to every prompt; see `Sampler.sample`.

        The log-probs are those of the whole softmax at the temperature (1 when greedy), before
        top_k and top_p, so that they compare with `Policy.score`.

        Args:
            policy: The model.
            prompts: P prompts.
            num_samples: G, answers per prompt.
            params: Length, temperature and filters.
            seed: Seed of this call.

        Returns:
            N = P * G rollouts, T = max_new_tokens.

        Raises:
            UserError: If a setting is out of bounds, or the model's logits are not finite.
        """
        check_request(policy, prompts, num_samples, params)
        size, width = len(prompts) * num_samples, params.max_new_tokens
        out = _Answers.empty(size, width, policy)
        with policy.generating():
            for chosen, samples in _batches(len(prompts), num_samples, self.max_batch_size):
                rows = torch.tensor([p * num_samples + g for p in chosen for g in samples])
                ids = [prompts.rows[p].token_ids for p in chosen]
                keys = [(prompts.positions[p], g) for p in chosen for g in samples]
                _decode(policy, ids, _uniforms(seed, keys, params), params, rows, out)
        if not bool(torch.isfinite(out.log_probs).all()):
            raise UserError(
                "the model's logits are NaN: training diverged; lower the learning rate"
            )
        lengths = out.mask.sum(-1).tolist()
        token_ids = out.token_ids.tolist()
        return Rollouts(
            prompts=prompts,
            group_ids=torch.tensor(prompts.positions, device=policy.device).repeat_interleave(
                num_samples
            ),
            token_ids=out.token_ids,
            mask=out.mask,
            terminated=out.terminated,
            log_probs=out.log_probs,
            completions=tuple(
                policy.decode(ids[:n]) for ids, n in zip(token_ids, lengths, strict=True)
            ),
        )


@dataclass
class _Answers:
    """The (N, T) result while it is being written."""

    token_ids: Tensor
    mask: Tensor
    terminated: Tensor
    log_probs: Tensor

    @staticmethod
    def empty(size: int, width: int, policy: Policy) -> _Answers:
        device = policy.device
        return _Answers(
            token_ids=torch.full((size, width), policy.pad_id, device=device),
            mask=torch.zeros(size, width, dtype=torch.bool, device=device),
            terminated=torch.zeros(size, dtype=torch.bool, device=device),
            log_probs=torch.zeros(size, width, device=device),
        )


def _batches(
    num_prompts: int, num_samples: int, limit: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Split P x G rows into blocks of whole groups, or parts of one group where G > limit."""
    at_once = max(1, limit // num_samples)
    for p in range(0, num_prompts, at_once):
        for g in range(0, num_samples, limit):
            yield (
                list(range(p, min(p + at_once, num_prompts))),
                list(range(g, min(g + limit, num_samples))),
            )


def _uniforms(seed: int, keys: list[tuple[int, int]], params: SamplingParams) -> Tensor | None:
    """Draw (rows, T) numbers in [0, 1), one stream per (position, sample)."""
    if params.temperature == 0:
        return None
    streams = (np.random.Philox(np.random.SeedSequence([seed, p, g])) for p, g in keys)
    draws = [np.random.Generator(stream).random(params.max_new_tokens) for stream in streams]
    return torch.from_numpy(np.stack(draws))


def _decode(
    policy: Policy,
    prompts: list[tuple[int, ...]],
    uniforms: Tensor | None,
    params: SamplingParams,
    rows: Tensor,
    out: _Answers,
) -> None:
    """Answer one block of prompts and write rows of `out`."""
    device, repeats = policy.device, len(rows) // len(prompts)
    eos = torch.tensor(sorted(policy.eos_ids), device=device, dtype=torch.long)
    rows = rows.to(device)
    draws = None if uniforms is None else uniforms.to(device)

    ids, attention = _left_padded(prompts, policy.pad_id, device)
    cache = policy.new_cache()
    positions = (attention.cumsum(-1) - 1).clamp_min(0)
    logits = policy.step(ids, attention, positions, cache)
    if repeats > 1:
        cache.batch_repeat_interleave(repeats)
        logits = logits.repeat_interleave(repeats, 0)
        attention = attention.repeat_interleave(repeats, 0)
    position = attention.sum(-1, keepdim=True)
    alive = torch.ones(len(rows), dtype=torch.bool, device=device)

    for t in range(params.max_new_tokens):
        tokens, log_probs = draw(logits, None if draws is None else draws[:, t], params)
        live = rows[alive]
        out.token_ids[live, t] = tokens[alive]
        out.log_probs[live, t] = log_probs[alive]
        out.mask[live, t] = True
        ended = alive & torch.isin(tokens, eos)
        out.terminated[rows[ended]] = True
        alive = alive & ~ended
        remaining = int(alive.sum())
        if remaining == 0 or t + 1 == params.max_new_tokens:
            return
        if len(alive) - remaining >= len(alive) / 4:
            keep = alive.nonzero().squeeze(-1)
            cache.batch_select_indices(keep)
            rows, attention, position = rows[keep], attention[keep], position[keep]
            tokens, alive = tokens[keep], alive[keep]
            draws = None if draws is None else draws[keep]
        attention = torch.cat([attention, attention.new_ones(len(rows), 1)], -1)
        logits = policy.step(tokens[:, None], attention, position, cache)
        position = position + 1


def _left_padded(
    prompts: list[tuple[int, ...]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) for prompt in prompts)
    ids = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    attention = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(attention, device=device)


def draw(logits: Tensor, uniforms: Tensor | None, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Pick one token per row by inverting the cumulative distribution.

    Args:
        logits: (rows, V) fp32.
        uniforms: (rows,) float64 in [0, 1), or None for the most likely token.
        params: Temperature and filters.

    Returns:
        (rows,) tokens and (rows,) fp32 log-probs under the unfiltered softmax at the temperature.
    """
    logits = logits / (params.temperature or 1.0)
    log_normaliser = logits.logsumexp(-1)
    if uniforms is None:
        tokens = logits.argmax(-1)
    else:
        block = max(1, _BLOCK_FLOATS // logits.shape[-1])
        parts = zip(torch.split(logits, block), torch.split(uniforms, block), strict=True)
        tokens = torch.cat([_invert(part.softmax(-1), u, params) for part, u in parts])
    return tokens, logits.gather(-1, tokens[:, None]).squeeze(-1) - log_normaliser


def _invert(probs: Tensor, uniforms: Tensor, params: SamplingParams) -> Tensor:
    cumulative = _filtered(probs, params).double().cumsum(-1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that the first entry above it exists and has mass of its own.
    target = torch.minimum(uniforms[:, None] * total, total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return index.clamp_max(probs.shape[-1] - 1)  # only a row of NaN gets past the end


def _filtered(probs: Tensor, params: SamplingParams) -> Tensor:
    """Set to 0 what top_k and top_p leave out."""
    if params.top_k == 0 and params.top_p >= 1:
        return probs
    ordered, order = probs.sort(stable=True, dim=-1, descending=True)
    if params.top_k:
        ordered[:, params.top_k :] = 0
    if params.top_p < 1:
        before = ordered.double().cumsum(-1) - ordered
        ordered = ordered.where(before < params.top_p * ordered.double().sum(-1, keepdim=True), 0)
    return torch.zeros_like(probs).scatter(-1, order, ordered)
