"""Hooks on routers: they watch one forward pass at a time, and make it use given experts.

Without an open watch they do nothing, so that sampling, evaluation and copies are untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.models.feeding.layout import Layout
from rlzoo.models.moe.families import Choice, RouterAdapter, layer_of
from rlzoo.types.expert_choices import RouterSettings, RouterSizes, Routing, expert_counts


class Watch:
    """What is gathered in one forward pass; `fed` comes before the first router.

    Args:
        taps: The hooks.
        experts: (n, S, L, k) experts to use, or None where routers choose.
    """

    def __init__(self, taps: Taps, experts: Tensor | None) -> None:
        self.taps, self.given = taps, experts
        self.layout: Layout | None = None
        self.forced: Tensor | None = None
        self.weights = torch.empty(0)
        self.chosen: dict[int, Tensor] = {}
        self.used: dict[int, Tensor] = {}
        self.entropy: dict[int, Tensor] = {}
        self.sums: dict[int, tuple[Tensor, Tensor]] = {}

    def fed(self, layout: Layout) -> None:
        """Learn which token stands where.

        Args:
            layout: What the decoder is about to be fed.
        """
        self.layout = layout
        real = layout.source[layout.source >= 0]
        self.weights = torch.bincount(real, minlength=len(layout.real)).float()
        if self.given is not None:
            self.forced = layout.collect(self.given).long()

    def routed(self, layer: int, router: nn.Module, choice: Choice, *, again: bool) -> Choice:
        """Note what a router chose, and return what is used.

        Args:
            layer: Place among the layers with experts.
            router: The router.
            choice: Its own choice.
            again: Whether activations are being recomputed: then nothing is noted twice, and the
                same operations run.

        Returns:
            The router's choice, or that of the given experts with the router's own logits.
        """
        assert self.layout is not None
        used = choice
        if self.forced is not None:
            # Padding keeps its own experts, or it would crowd into one and change GEMM shapes.
            experts = self.forced[:, layer].where(self.layout.real[:, None], choice.experts)
            weights = self.taps.adapter.weights(router, choice.logits, experts)
            used = Choice(choice.logits, weights.to(choice.weights.dtype), experts)
        if torch.is_grad_enabled():
            self._measure(layer, choice.logits, used.experts, again=again)
        if not again:
            self.chosen[layer] = choice.experts.to(self.taps.sizes.dtype)
        return used

    def _measure(self, layer: int, logits: Tensor, used: Tensor, *, again: bool) -> None:
        settings, adapter = self.taps.settings, self.taps.adapter
        if settings.in_loss:
            normalizer = logits.float().logsumexp(-1)
            sums = self.weights @ adapter.probabilities(logits), self.weights @ normalizer.square()
            if not again:
                self.sums[layer] = sums
        if settings.statistics and not again:
            with torch.no_grad():
                entropy = torch.special.entr(adapter.probabilities(logits)).sum(-1)
                self.entropy[layer] = self.weights @ entropy
                self.used[layer] = used

    def result(self) -> Routing:
        """Return what was gathered."""
        assert self.layout is not None
        layers, layout = range(len(self.taps.sizes.layers)), self.layout
        chosen = layout.scatter(torch.stack([self.chosen[i] for i in layers], 1))
        load = entropy = probabilities = log_normalizer = forced = None
        if self.used:
            used = torch.stack([self.used[i] for i in layers], 1)
            load = expert_counts(used, self.weights, self.taps.sizes.experts)
            if self.forced is not None:
                forced = layout.scatter(used).to(chosen.dtype)
            entropy = torch.stack([self.entropy[i] for i in layers]).double()
        if self.sums:
            probabilities = torch.stack([self.sums[i][0] for i in layers])
            log_normalizer = torch.stack([self.sums[i][1] for i in layers])
        tokens = self.weights.double().sum()
        return Routing(chosen, tokens, forced, load, entropy, probabilities, log_normalizer)


class Taps:
    """The hooks on all routers of a model.

    Args:
        model: A transformers causal language model.
        adapter: Of its family.
        settings: What is to be watched.
    """

    def __init__(self, model: nn.Module, adapter: RouterAdapter, settings: RouterSettings) -> None:
        self.adapter, self.settings = adapter, settings
        routers = adapter.find(model)
        found = {adapter.size(router) for router in routers.values()}
        if len(found) != 1:
            raise ValueError(f"{type(adapter).__name__} found routers of these sizes: {found}")
        [(experts, top_k)] = found
        self.sizes = RouterSizes(tuple(layer_of(name) for name in routers), experts, top_k)
        self.watch: Watch | None = None
        self.recomputing = False
        self.trace: list[Tensor] | None = None
        for layer, router in enumerate(routers.values()):
            router.register_forward_hook(partial(self._after, layer))

    @property
    def listening(self) -> bool:
        """Whether somebody watches or traces the pass that runs."""
        return self.watch is not None or self.trace is not None

    def _after(self, layer: int, router: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not self.listening:
            return None
        choice = self.adapter.read(router, inputs, output)
        if self.watch is None:
            assert self.trace is not None
            self.trace.append(choice.experts.to(self.sizes.dtype))
            return None
        if self.watch.layout is None:  # nothing has been fed: somebody tries the decoder out
            return None
        used = self.watch.routed(layer, router, choice, again=self.recomputing)
        return None if used is choice else self.adapter.replaced(output, used)

    @contextmanager
    def watching(self, experts: Tensor | None) -> Iterator[Watch]:
        """Watch the forward pass inside.

        Args:
            experts: (n, S, L, k) experts to use, or None where routers choose.

        Yields:
            What is gathered.
        """
        with self._set(Watch(self, experts), recomputing=False):
            assert self.watch is not None
            yield self.watch

    @contextmanager
    def tracing(self) -> Iterator[Callable[[], Tensor | None]]:
        """Note the experts of the passes inside, without gradients.

        Yields:
            What returns the (tokens, L, k) experts of the last pass, and forgets all before.
        """
        trace: list[Tensor] = []

        def last() -> Tensor | None:
            found = trace[-len(self.sizes.layers) :]
            trace.clear()
            return torch.stack(found, 1) if found else None

        before, self.trace = self.trace, trace
        try:
            yield last
        finally:
            self.trace = before

    @contextmanager
    def _set(self, watch: Watch | None, *, recomputing: bool) -> Iterator[None]:
        before = self.watch, self.recomputing
        self.watch, self.recomputing = watch, recomputing
        try:
            yield
        finally:
            self.watch, self.recomputing = before

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what surrounds a checkpointed layer in its forward pass and in its recomputation.

        The second brings back the watch of the first, whatever has been watched in between.
        """
        return nullcontext(), self._set(self.watch, recomputing=True)
