"""Routers of the Hugging Face families: where they are, and gate weights of given experts.

A family of its own needs one class: where its routers are, what their output means, and how gate
weights follow from logits once the experts are fixed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlzoo.errors import UserError


class Choice(NamedTuple):
    """A router's choice: raw logits (tokens, E), gate weights and experts (tokens, k)."""

    logits: Tensor
    weights: Tensor
    experts: Tensor


class RouterAdapter(ABC):
    """Reads and replaces the choice of a family's routers.

    The defaults are those of transformers: a module whose class ends in TopKRouter returns logits,
    gate weights and experts, in this order, of its tokens laid flat.
    """

    families: ClassVar[tuple[str, ...]] = ()
    """Values of ``model_type`` that it is made for."""

    def find(self, model: nn.Module) -> dict[str, nn.Module]:
        """Find the routers.

        Args:
            model: A transformers causal language model.

        Returns:
            Qualified names and routers, one per layer with experts, first layer first.
        """
        return {
            name: module
            for name, module in model.named_modules()
            if type(module).__name__.lower().endswith("topkrouter")
        }

    def size(self, router: nn.Module) -> tuple[int, int]:
        """Return the number of experts and how many of them a token gets."""
        return int(router.num_experts), int(router.top_k)  # type: ignore[arg-type]

    def read(self, router: nn.Module, inputs: tuple[Any, ...], output: Any) -> Choice:
        """Take apart what a router returned.

        Args:
            router: Whose output it is.
            inputs: Positional arguments of its forward.
            output: What that returned.

        Returns:
            Logits, weights and experts.
        """
        return Choice(*output)

    def replaced(self, output: Any, choice: Choice) -> Any:
        """Return the router's output with another choice in it."""
        return tuple(choice)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the distribution over experts, for the balance loss and the entropy.

        Args:
            logits: (tokens, E).

        Returns:
            (tokens, E) fp32, rows sum to 1.
        """
        return logits.softmax(-1, dtype=torch.float32)

    @abstractmethod
    def weights(self, router: nn.Module, logits: Tensor, experts: Tensor) -> Tensor:
        """Return the gate weights of given experts, equal to the router's own for its own choice.

        Args:
            router: The router.
            logits: (tokens, E) raw logits, with gradient.
            experts: (tokens, k) long.

        Returns:
            (tokens, k) weights.
        """


class SoftmaxRouter(RouterAdapter):
    """Softmax over all experts; the k largest are kept and, in most families, made to sum to 1."""

    families = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "qwen3_5_moe", "qwen3_5_moe_text")

    def weights(self, router: nn.Module, logits: Tensor, experts: Tensor) -> Tensor:
        """Return the softmax at the given experts; a router without the switch always divides."""
        kept = self.probabilities(logits).gather(-1, experts)
        normalize = getattr(router, "norm_topk_prob", True)
        return kept / kept.sum(-1, keepdim=True) if normalize else kept


class DeepseekV2Router(RouterAdapter):
    """Softmax over all experts times a constant, not divided by its sum."""

    families = ("deepseek_v2",)

    def weights(self, router: nn.Module, logits: Tensor, experts: Tensor) -> Tensor:
        """Return the scaled softmax at the given experts."""
        kept = self.probabilities(logits).gather(-1, experts)
        return kept * router.routed_scaling_factor  # type: ignore[operator]


class DeepseekV3Router(RouterAdapter):
    """A sigmoid per expert; a bias, which no gradient reaches, takes part in the choice alone."""

    families = ("deepseek_v3",)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return sigmoids divided by their sum over experts (arXiv 2412.19437, equation 19)."""
        sigmoids = logits.float().sigmoid()
        return sigmoids / sigmoids.sum(-1, keepdim=True)

    def weights(self, router: nn.Module, logits: Tensor, experts: Tensor) -> Tensor:
        """Return the scaled sigmoids at the given experts, made to sum to 1 if the family does."""
        kept = logits.sigmoid().gather(-1, experts)
        if router.norm_topk_prob:
            kept = kept / (kept.sum(-1, keepdim=True) + 1e-20)
        return kept * router.routed_scaling_factor  # type: ignore[operator]


ADAPTERS: tuple[RouterAdapter, ...] = (SoftmaxRouter(), DeepseekV2Router(), DeepseekV3Router())
FAMILIES = tuple(family for adapter in ADAPTERS for family in adapter.families)


def adapter_for(family: str) -> RouterAdapter:
    """Return the adapter of a family.

    Args:
        family: ``model_type`` of the text config.

    Returns:
        An adapter.

    Raises:
        UserError: If there is none.
    """
    for adapter in ADAPTERS:
        if family in adapter.families:
            return adapter
    shown = ", ".join(name for name in FAMILIES if not name.endswith("_text"))
    raise UserError(
        f"MoEPolicy: no router adapter for model_type '{family}'; there are {shown}. Write a "
        "RouterAdapter (where the routers are, and gate weights from logits and given experts) and "
        "set `adapter` to its class"
    )


def layer_of(name: str) -> int:
    """Return the decoder layer that a module's qualified name is in, -1 if it names none."""
    found = re.search(r"\.(\d+)\.", f".{name}.")
    return int(found[1]) if found else -1
