"""Routers of sharded blocks of experts, watched and replayed like those they came from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.models.moe.families import Choice, RouterAdapter
from rlzoo.models.moe.hooks import Taps
from rlzoo.models.moe.policy import MoEPolicy
from rlzoo.strategies.deepspeed.autoep import moe_layers


class ShardedRouter(RouterAdapter):
    """AutoEP's router, which returns gate weights, experts and counts, and no logits.

    Args:
        origin: Adapter of the family, which knows what its logits mean.
    """

    def __init__(self, origin: RouterAdapter) -> None:
        self.origin = origin
        self.taps: Taps | None = None
        self.logits: dict[nn.Module, Tensor] = {}

    def find(self, model: nn.Module) -> dict[str, nn.Module]:
        """Find the routers of sharded blocks; see `RouterAdapter.find`."""
        return {name: layer.router for name, layer in moe_layers(model).items()}

    def read(self, router: nn.Module, inputs: tuple[Any, ...], output: Any) -> Choice:
        """Take apart what a router returned, and what its gate did on the way."""
        weights, experts, _ = output
        return Choice(self.logits.pop(router), weights, experts)

    def replaced(self, output: Any, choice: Choice) -> Any:
        """Return the output with another choice, counted anew: tokens are sent by the counts."""
        counts = torch.bincount(choice.experts.flatten(), minlength=len(output[2]))
        return choice.weights, choice.experts, counts.to(output[2].dtype)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the family's distribution over experts."""
        return self.origin.probabilities(logits)

    def weights(self, router: nn.Module, logits: Tensor, experts: Tensor) -> Tensor:
        """Return gate weights of given experts as AutoEP's router computes them."""
        made: Any = router
        fp32 = logits.float()
        scores = fp32.sigmoid() if made.score_func == "sigmoid" else fp32.softmax(-1)
        kept = scores.gather(-1, experts)
        if made.route_norm:
            kept = kept / (kept.sum(-1, keepdim=True) + 1e-20)
        return kept * float(made.route_scale)

    def keep_logits(self, router: nn.Module) -> None:
        """Keep what a router's gate returns while somebody watches."""

        def note(*call: Any) -> None:
            if self.taps is not None and self.taps.listening:
                self.logits[router] = call[2]

        router.gate.register_forward_hook(note)  # type: ignore[union-attr]


def watch_sharded(policy: MoEPolicy) -> None:
    """Watch the routers of a policy whose experts were sharded, in place of its former ones.

    Args:
        policy: After its blocks were replaced.
    """
    assert policy.taps is not None
    adapter = ShardedRouter(policy.taps.adapter)
    policy.taps = adapter.taps = Taps(policy.causal_lm, adapter, policy.router)
    for router in adapter.find(policy.causal_lm).values():
        adapter.keep_logits(router)
    if policy.gradient_checkpointing:
        policy.causal_lm.gradient_checkpointing_enable(policy.checkpoint_options)
