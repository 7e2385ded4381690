"""The few collectives a stage may need; each is the identity in a single process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_ranks(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks, leaving the argument alone."""
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest of an integer over all ranks."""
    if world_size() == 1:
        return value
    largest = torch.tensor(value, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def any_over_ranks(value: bool, device: torch.device) -> bool:
    """Return whether a condition holds on some rank."""
    return bool(max_over_ranks(int(value), device))


def gather_objects(value: Any) -> list[Any]:
    """Return one picklable object per rank, in rank order."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def rank() -> int:
    """Return this process's rank, 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def broadcast_object(value: Any) -> Any:
    """Return rank 0's picklable object on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
