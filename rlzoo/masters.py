"""Full-precision masters of half-precision weights: what an optimizer really moves.

A bfloat16 weight has 8 bits: at a learning rate of 1e-6 nearly every step rounds to nothing. Here
the optimizer works on float32 copies, gradients are summed up in float32, and the model's weights
are the masters rounded, once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_HALF = (torch.bfloat16, torch.float16)
_KEY = "masters"


def with_masters(make: Callable[[Any], Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """Make an optimizer whose half-precision parameters are held in float32.

    It is the optimizer that ``make`` returns, with hooks: its ``state_dict`` has the masters too,
    and its parameters are what is to be clipped (`stepped`). Where no parameter is in half
    precision it is left as it is. In one process gradients are summed up in float32 over
    micro-batches; where a wrapper reduces the model's own gradients over processes, they are summed
    up as that does.

    Args:
        make: Optimizer of parameter groups.
        groups: Parameter groups of a model.

    Returns:
        The optimizer.
    """
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []

    def master(parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype not in _HALF:
            return parameter
        own = nn.Parameter(parameter.detach().float())
        pairs.append((parameter, own))
        return own

    held = [{**group, "params": [master(p) for p in group["params"]]} for group in groups]
    optimizer = make(held)
    if pairs:
        _connect(optimizer, pairs)
    return optimizer


def stepped(optimizer: Any) -> list[nn.Parameter]:
    """Hand the gradients to the parameters that a step moves, where they are to be clipped.

    Args:
        optimizer: Any, or Lightning's wrapper of one.

    Returns:
        The masters of half-precision weights, and the other weights themselves.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for own in parameters:
        half = getattr(own, "rounded", None)
        if half is not None and half.grad is not None:
            _sum_up(own, half)
    return parameters


def _sum_up(own: nn.Parameter, half: Tensor) -> None:
    assert half.grad is not None
    own.grad = half.grad.float() if own.grad is None else own.grad.add_(half.grad)
    half.grad = None


def _connect(optimizer: Optimizer, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
    for parameter, own in pairs:
        own.rounded = parameter  # type: ignore[attr-defined]
        # A second optimizer over the same weights takes over from the first.
        if (old := getattr(parameter, "of_master", None)) is not None:
            old.remove()
        if not torch.distributed.is_initialized():
            hook: Any = parameter.register_post_accumulate_grad_hook
            parameter.of_master = hook(partial(_sum_up, own))  # type: ignore[attr-defined]

    @torch.no_grad()
    def round_down(*_: Any) -> None:
        for parameter, own in pairs:
            parameter.copy_(own)

    def save(_optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, _KEY: [own.detach() for _half, own in pairs]}

    @torch.no_grad()
    def load(_optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        saved = state.get(_KEY) or [parameter for parameter, _ in pairs]
        for (_half, own), value in zip(pairs, saved, strict=True):
            own.copy_(value)
        return {name: value for name, value in state.items() if name != _KEY}

    optimizer.register_step_post_hook(round_down)
    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)
