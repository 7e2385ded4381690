"""Gradient accumulation under manual optimisation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.nn.parallel import DistributedDataParallel


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
