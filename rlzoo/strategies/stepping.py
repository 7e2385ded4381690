"""One optimizer step under each strategy: clip, refuse what is not finite, step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from rlzoo.models.forward import predict
from rlzoo.strategies.fsdp2 import whole
from rlzoo.strategies.master_weights import stepped

if TYPE_CHECKING:
    from rlzoo.training.module import RLModule


def is_engine(model: Any) -> bool:
    """Say whether a strategy's model is a DeepSpeed engine, without importing DeepSpeed."""
    return type(model).__module__.startswith("deepspeed.")


def training_pass(module: RLModule) -> Callable[..., dict[str, Any]]:
    """Return what makes a pass with gradients: a DeepSpeed engine has to see each of them."""
    model: Any = module.trainer.model
    return model if is_engine(model) else predict


def clip_and_step(module: RLModule, optimizer: Any) -> tuple[float, bool]:
    """Scale the gradients down to ``max_grad_norm``, step unless they are not finite, clear them.

    Args:
        module: Whose step it is.
        optimizer: Lightning's wrapper of the one optimizer, whose parameters hold the gradients of
            all micro-batches and ranks.

    Returns:
        The norm before clipping, over all ranks and experts, and whether the step was taken.
    """
    engine: Any = module.trainer.model
    if is_engine(engine):
        optimizer.step()  # DeepSpeed clips, skips and clears by itself
        return float(engine.get_global_grad_norm()), bool(engine.was_step_applied())
    limit = module.max_grad_norm or float("inf")
    norm = whole(torch.nn.utils.clip_grad_norm_(stepped(optimizer), limit))
    finite = bool(torch.isfinite(norm))
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return float(norm), finite
