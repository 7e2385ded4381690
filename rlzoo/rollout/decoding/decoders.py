"""Decoders: they run a model one token at a time over a changing set of answers."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.models.base import Policy
from rlzoo.rollout.decoding.kv_cache import Slots


class Decoder(ABC):
    """The answers that are being decoded, and the model that continues them.

    Args:
        policy: The model.

    Attributes:
        joins: Whether answers may join while others are being decoded.
    """

    joins = True

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @abstractmethod
    def prefill(self, prompts: list[tuple[int, ...]], owners: Tensor) -> Tensor:
        """Read prompts and add answers to them.

        Args:
            prompts: Token ids, each prompt once.
            owners: (new,) the prompt of each new answer.

        Returns:
            (P, V) fp32 logits of the first token.
        """

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """Continue every answer.

        Args:
            tokens: (rows,) the token that each was given last.

        Returns:
            (rows, V) fp32 logits of the next one.
        """

    @abstractmethod
    def keep(self, alive: Tensor) -> Tensor:
        """Let answers go.

        Args:
            alive: (rows,) bool.

        Returns:
            (kept,) the former row of each row that is left.
        """

    def weights(self) -> AbstractContextManager[None]:
        """Return the context in which the model is run."""
        return cast_once(self.policy)

    def idle(self) -> None:
        """Run the model once for nothing, while other ranks need it to take part."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.policy.device)
        self.policy.step(ids, torch.ones_like(ids), ids, self.policy.new_cache())

    def _read(self, prompts: list[tuple[int, ...]], cache: Any) -> tuple[Tensor, Tensor]:
        """Run left-padded prompts; returns first logits and the (P, width) mask."""
        width, device = max(len(prompt) for prompt in prompts), self.policy.device
        pad = self.policy.pad_id
        rows = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = torch.arange(width, 0, -1, device=device) <= lengths[:, None]
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        ids = torch.tensor(rows, device=device)
        return self.policy.step(ids, mask.long(), positions, cache), mask


class WholeDecoder(Decoder):
    """For caches of any kind, recurrent states too; answers begin together."""

    joins = False

    def prefill(self, prompts: list[tuple[int, ...]], owners: Tensor) -> Tensor:
        """Read prompts and begin anew; see `Decoder.prefill`."""
        self.cache = self.policy.new_cache()
        logits, mask = self._read(prompts, self.cache)
        if len(owners) > len(prompts) or not torch.equal(owners, owners.sort().values):
            self.cache.reorder_cache(owners)
        self.mask = mask.long()[owners]
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Continue every answer; see `Decoder.step`."""
        position = self.mask.sum(-1, keepdim=True)
        if self.policy.max_length is not None:
            position.clamp_max_(self.policy.max_length - 1)
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], -1)
        return self.policy.step(tokens[:, None], self.mask, position, self.cache)

    def keep(self, alive: Tensor) -> Tensor:
        """Let answers go; see `Decoder.keep`."""
        order = alive.nonzero().squeeze(-1)
        self.cache.reorder_cache(order)
        self.mask = self.mask[order]
        return order


class SlotDecoder(Decoder):
    """For caches of keys and values: answers join and leave at any step.

    Args:
        policy: The model.
        rows: Most answers at a time.
        room: Most tokens per answer.
    """

    def __init__(self, policy: Policy, rows: int, room: int) -> None:
        super().__init__(policy)
        self.slots = Slots(rows, room, policy.device)
        self.cache: Any = None

    def prefill(self, prompts: list[tuple[int, ...]], owners: Tensor) -> Tensor:
        """Read prompts and add answers to them; see `Decoder.prefill`."""
        cache = _plain_cache(self.policy)
        logits, mask = self._read(prompts, cache)
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        self.slots.join(layers, mask.sum(-1), owners)
        self.cache = self.cache or _slot_cache(self.slots)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Continue every answer; see `Decoder.step`."""
        self.slots.grow()
        visible, positions = self.slots.visible(), self._positions()
        if visible is None:
            width = self.slots.end + 1 - self.slots.low
            visible = torch.ones(len(tokens), width, dtype=torch.long, device=tokens.device)
        logits = self.policy.step(tokens[:, None], visible.long(), positions[:, None], self.cache)
        self.slots.advance()
        return logits

    def keep(self, alive: Tensor) -> Tensor:
        """Let answers go; see `Decoder.keep`."""
        return self.slots.keep(alive)

    def _positions(self) -> Tensor:
        # An answer that is over but has not left yet must not run out of positions.
        limit, positions = self.policy.max_length, self.slots.positions()
        return positions if limit is None else positions.clamp_max(limit - 1)


def generic_decoder(policy: Policy, rows: int, room: int) -> Decoder:
    """Return the decoder through transformers that suits a model.

    Args:
        policy: The model.
        rows: Most answers at a time.
        room: Most tokens per answer.

    Returns:
        A decoder without answers.
    """
    kinds = {type(layer).__name__ for layer in getattr(policy.new_cache(), "layers", [])}
    simple = bool(kinds) and kinds <= {"DynamicLayer", "DynamicSlidingWindowLayer"}
    if not simple or "chunked_attention" in _layer_types(policy):
        return WholeDecoder(policy)
    return SlotDecoder(policy, rows, room)


@contextmanager
def cast_once(policy: Policy) -> Iterator[None]:
    """Hold linear weights in autocast's type for a while, which casts at every call otherwise.

    Args:
        policy: A model whose weights are all on this rank.

    Yields:
        Nothing.
    """
    kind = policy.device.type
    if not torch.is_autocast_enabled(kind) or policy.lockstep:
        yield
        return
    kept = {id(m.weight) for m in policy.modules() if isinstance(m, nn.Embedding)}
    linear = [m.weight for m in policy.modules() if isinstance(m, nn.Linear)]
    before = [(weight, weight.data) for weight in linear if id(weight) not in kept]
    try:
        for weight, data in before:
            weight.data = data.to(torch.get_autocast_dtype(kind))
        yield
    finally:
        for weight, data in before:
            weight.data = data


def _layer_types(policy: Policy) -> list[str]:
    config = policy.causal_lm.config.get_text_config()
    return list(getattr(config, "layer_types", None) or [])


def _plain_cache(policy: Policy) -> Any:
    """Return a cache that keeps every token, where the model's own may forget old ones."""
    from transformers.cache_utils import Cache, DynamicLayer

    return Cache(layers=[DynamicLayer() for _ in policy.new_cache().layers])


def _slot_cache(slots: Slots) -> Any:
    """Return the slots as the kind of cache that transformers' attention writes to."""
    from transformers.cache_utils import Cache

    return Cache(layers=[_slot_layer()(slots, i) for i in range(len(slots.layers))])


@functools.cache
def _slot_layer() -> Any:
    """Return the class, made once: one that held the slots would keep them until a collection."""
    from transformers.cache_utils import DynamicLayer

    class SlotLayer(DynamicLayer):  # type: ignore[misc]
        def __init__(self, slots: Slots, index: int) -> None:
            super().__init__()
            self.slots, self.index, self.is_initialized = slots, index, True

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
            return self.slots.write(self.index, key_states, value_states)

        def get_seq_length(self) -> int:
            return self.slots.end - self.slots.low

    return SlotLayer
