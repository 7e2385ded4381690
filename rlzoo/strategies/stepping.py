"""One optimizer step under each strategy: accumulate, clip, refuse what is not finite, step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rlzoo.models.forward import predict
from rlzoo.strategies.fsdp2 import whole
from rlzoo.strategies.master_weights import stepped


def is_engine(model: Any) -> bool:
    """Say whether a strategy's model is a DeepSpeed engine, without importing DeepSpeed."""
    return type(model).__module__.startswith("deepspeed.")


def training_pass(model: Any) -> Callable[..., dict[str, Any]]:
    """Return what makes a pass with gradients: a DeepSpeed engine has to see each of them.

    Args:
        model: The trainer's model, wrapped by the strategy or not.
    """
    return model if is_engine(model) else predict


def take_update(
    model: Any,
    optimizer: Any,
    losses: Sequence[Callable[[], Tensor]],
    max_norm: float,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> tuple[float, bool]:
    """Take one optimizer step over micro-batches: training, cold start and inspection alike.

    Args:
        model: What computes the losses, wrapped by a strategy or not.
        optimizer: Of its parameters, or Lightning's wrapper of one; it holds no gradients yet.
        losses: A function per micro-batch that returns its share of the step's loss.
        max_norm: Gradients are scaled down to this norm; 0 is off.
        backward: What makes gradients of a loss.

    Returns:
        The norm before clipping, over all ranks and experts, and whether the step was taken.
    """
    for i, loss in enumerate(losses):
        with accumulating(model, last=i + 1 == len(losses)):
            backward(loss())
    return clip_and_step(model, optimizer, max_norm)


def clip_and_step(model: Any, optimizer: Any, max_norm: float) -> tuple[float, bool]:
    """Scale the gradients down to a norm, step unless they are not finite, clear them.

    Args:
        model: The trainer's model, wrapped by the strategy or not.
        optimizer: Lightning's wrapper of the one optimizer, whose parameters hold the gradients of
            all micro-batches and ranks.
        max_norm: Largest norm; 0 is off.

    Returns:
        The norm before clipping, over all ranks and experts, and whether the step was taken.
    """
    if is_engine(model):
        optimizer.step()  # DeepSpeed clips, skips and clears by itself
        return float(model.get_global_grad_norm()), bool(model.was_step_applied())
    limit = max_norm or float("inf")
    norm = whole(torch.nn.utils.clip_grad_norm_(stepped(optimizer), limit))
    finite = bool(torch.isfinite(norm))
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return float(norm), finite


def accumulating(model: Any, *, last: bool) -> AbstractContextManager[None]:
    """Return the context in which one micro-batch of an optimizer step runs its backward pass.

    Under DDP all but the last micro-batch stay local, so that gradients travel once per step.

    Args:
        model: The trainer's model, wrapped by the strategy or not.
        last: Whether this is the step's last micro-batch.

    Returns:
        A context manager.
    """
    if isinstance(model, DistributedDataParallel) and not last:
        sync: AbstractContextManager[None] = model.no_sync()
        return sync
    return nullcontext()
