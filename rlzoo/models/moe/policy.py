"""Mixtures of experts: models whose router picks a few experts for every token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import Self

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.models.feeding.layout import Layout
from rlzoo.models.moe.families import RouterAdapter, adapter_for
from rlzoo.models.moe.hooks import Taps
from rlzoo.types import LogProbs, Sequences
from rlzoo.types.expert_choices import RouterSettings, RouterSizes

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Where configs say how many experts a layer has."""


def num_experts(config: Any) -> int:
    """Count the experts of one layer.

    Args:
        config: A transformers text config.

    Returns:
        The number, 0 for a dense model.
    """
    for name in COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 1:
            return count
    return 0


class MoEPolicy(Policy):
    """One mixture-of-experts Hugging Face causal language model and its tokenizer.

    No loss of the router is taken from the checkpoint's config: what is not set here is off.

    Args:
        replay: Whose experts a training forward is made to use. ``off``: the router's own choice.
            ``old-policy``: those that the same tokens had before the iteration's first update.
            ``rollout``: those that the sampler used.
            Gate weights always follow from the current router, which keeps its gradient.
        aux_coefficient: Weight of the load-balancing loss,
            ``E / L sum_l sum_e f_le P_le`` with f the tokens sent to an expert per token and P its
            mean router probability, over the real tokens of an optimizer step.
        z_coefficient: Weight of the router z-loss, the mean squared logsumexp of router logits.
        freeze_router: Do not train the routers.
        router_fp32: Keep the routers' weights and logits in fp32 where the model is not.
        experts_implementation: Kernel of the experts, as transformers names them; ``auto`` is
            grouped_mm where there is a kernel for it (on CPU too), else eager.
        adapter: How routers are found and read, for a family that has no adapter here.
        statistics: Measure load, entropy and volatility of the routing in training.
        **kwargs: The arguments of every policy.
    """

    def __init__(
        self,
        replay: Literal["off", "old-policy", "rollout", False] = "off",
        aux_coefficient: float = 0.0,
        z_coefficient: float = 0.0,
        freeze_router: bool = False,
        router_fp32: bool = False,
        experts_implementation: Literal["auto", "grouped_mm", "eager", "batched_mm"] = "auto",
        adapter: RouterAdapter | None = None,
        statistics: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if aux_coefficient < 0 or z_coefficient < 0:
            raise UserError(
                f"MoEPolicy: aux_coefficient {aux_coefficient} and z_coefficient {z_coefficient} "
                "must be >= 0; 0 is off"
            )
        # YAML reads a bare `off` as False.
        self.router = RouterSettings(replay or "off", aux_coefficient, z_coefficient, statistics)
        if freeze_router and self.router.in_loss:
            raise UserError(
                "MoEPolicy: aux_coefficient and z_coefficient train the router, which "
                "freeze_router forbids; drop one of them"
            )
        if freeze_router and self.lora is not None:
            raise UserError("MoEPolicy: lora leaves the router frozen anyway; drop freeze_router")
        self.freeze_router, self.router_fp32 = freeze_router, router_fp32
        self.adapter = adapter
        self.experts_implementation: Literal["auto", "grouped_mm", "eager", "batched_mm"] = (
            experts_implementation
        )
        self.taps: Taps | None = None
        if experts_implementation != "auto":
            self.source.options["experts_implementation"] = experts_implementation

    def check_family(self, config: Any) -> None:
        """Refuse a dense model, and a family whose routers nothing here can read.

        See `Weights.check_family`.
        """
        if not num_experts(config):
            raise UserError(
                f"MoEPolicy: model_type '{config.model_type}' has no experts; use DensePolicy"
            )
        if self.adapter is None:
            adapter_for(config.model_type)

    def prepare(self, model: Any) -> None:
        """Hook, freeze and upcast the routers; see `Weights.prepare`.

        Raises:
            UserError: If no layer has a router that the adapter finds.
        """
        config = model.config.get_text_config()
        adapter = self.adapter or adapter_for(config.model_type)
        config.output_router_logits = False  # no loss and no list of logits of transformers' own
        routers = adapter.find(model)
        if not routers:
            raise UserError(
                f"MoEPolicy: {type(adapter).__name__} finds no router in model_type "
                f"'{config.model_type}'; use DensePolicy, or another `adapter`"
            )
        for router in routers.values():
            router.requires_grad_(not self.freeze_router)
            if self.router_fp32:
                keep_fp32(router)
        self.taps = Taps(model, adapter, self.router)

    @property
    def router_sizes(self) -> RouterSizes | None:
        """Layers with experts, and how many; None before `load`."""
        return None if self.taps is None else self.taps.sizes

    @property
    def checkpoint_options(self) -> dict[str, Any]:
        """How layers are recomputed: under the watch of their own forward pass."""
        assert self.taps is not None
        return {**super().checkpoint_options, "context_fn": self.taps.contexts}

    def forward(self, sequences: Sequences, temperature: float, entropy: bool) -> LogProbs:
        """Return log-probs with their `routing`, or none where nothing is watched.

        Routers are made to use ``sequences.experts`` where there are any. See `Policy.forward`.
        """
        if self.taps is None or self._frozen or not self.router.watched:
            return super().forward(sequences, temperature, entropy)
        with self.taps.watching(sequences.experts) as watch:
            predicted = super().forward(sequences, temperature, entropy)
            return replace(predicted, routing=watch.result())

    def sibling(self, path: str) -> Self:
        """Return a policy that reads and computes its routers as this one does."""
        return type(self)(
            path=path,
            dtype=self.dtype,
            layout=self.layout,
            router_fp32=self.router_fp32,
            experts_implementation=self.experts_implementation,
            adapter=self.adapter,
        )

    @contextmanager
    def noting_experts(self) -> Iterator[Callable[[], Tensor | None]]:
        """Note the experts of every pass inside; see `Policy.noting_experts`."""
        if self.taps is None or not self.router.traced:
            yield lambda: None
            return
        with self.taps.tracing() as last:
            yield last

    def hidden_states(self, layout: Layout) -> Tensor:
        """Run the decoder without its LM head; see `Policy.hidden_states`."""
        if self.taps is not None and self.taps.watch is not None:
            self.taps.watch.fed(layout)
        return super().hidden_states(layout)

    def describe(self) -> list[str]:
        """Return what a run says about the model at its start."""
        assert self.taps is not None
        sizes, router = self.taps.sizes, self.router
        kernel = self.causal_lm.config.get_text_config()._experts_implementation
        trained = "frozen" if self.freeze_router or self.lora is not None else "trained"
        fp32 = " in fp32" if self.router_fp32 else ""
        return [
            f"experts: {len(sizes.layers)} layers x {sizes.experts}, {sizes.top_k} per token,"
            f" kernel {kernel}; routers {trained}{fp32}, replay {router.replay},"
            f" aux loss {router.aux_coefficient:g}, z-loss {router.z_coefficient:g}"
        ]


def keep_fp32(router: nn.Module) -> None:
    """Make a router keep fp32 weights and compute in fp32, under autocast too.

    Args:
        router: Changed in place.
    """
    router.float()
    router.forward = MethodType(_in_fp32, router)


def _in_fp32(router: nn.Module, hidden: Tensor, *args: Any) -> Any:
    with torch.autocast(hidden.device.type, enabled=False):
        return cast(Any, type(router).forward)(router, hidden.float(), *args)
