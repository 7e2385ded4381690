"""Full-precision masters of half-precision weights: what an optimizer really moves.

A bfloat16 weight has 8 bits: at a learning rate of 1e-6 nearly every step rounds to nothing. Here
the optimizer works on float32 values, gradients are summed up in float32, and the model's weights
are those values rounded, once per step. Between steps a value is kept as its weight and the 16 bits
that rounding took away, so that the masters take 2 bytes per weight and not 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_KEY = "masters"
_HALF_UNIT = 2**15  # half a unit of the upper 16 bits: cutting after adding it rounds to nearest
_TURN = 2**24  # weights whose float32 values exist at a time: 64 MB, however large the model
_ADDED = 2**20  # elements per addition of a gradient: bounds the float32 copy that it makes


class Master:
    """The float32 value of a bfloat16 weight, in two halves of 16 bits.

    ``bits(value) + 2^15 = bits(weight) 2^16 + rest``: the weight is the value rounded to nearest,
    ties away from zero, and both halves together give it back bit for bit.

    Args:
        weight: The model's parameter, whose value this is at first.

    Attributes:
        weight: The model's parameter.
        rest: What rounding takes away, int16.
        value: What an optimizer moves; it has memory between `open` and `close` only.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight
        self.rest = torch.full_like(weight, -_HALF_UNIT, dtype=torch.int16, requires_grad=False)
        self.value = nn.Parameter(torch.empty_like(weight, dtype=torch.float32).contiguous())
        self.value.master = self  # type: ignore[attr-defined]
        # An optimizer keys its state on the parameter, which has to stay; only its memory may go.
        self.value.untyped_storage().resize_(0)

    def open(self) -> None:
        """Join the halves."""
        self.value.untyped_storage().resize_(4 * self.value.numel())
        low, high = self._halves()
        low.copy_(self.rest)
        high.copy_(self.weight.detach().view(torch.int16))
        self.value.detach().view(torch.int32).sub_(_HALF_UNIT)

    def close(self) -> None:
        """Round the value to the weight, and give its memory back."""
        self.value.detach().view(torch.int32).add_(_HALF_UNIT)
        low, high = self._halves()
        self.rest.copy_(low)
        self.weight.detach().view(torch.int16).copy_(high)
        self.value.untyped_storage().resize_(0)

    def _halves(self) -> tuple[Tensor, Tensor]:
        pairs = self.value.detach().view(-1).view(torch.int16).view(*self.weight.shape, 2)
        return pairs[..., 0], pairs[..., 1]  # the low half comes first on every machine of today

    def load(self, saved: Tensor) -> None:
        """Take the rest of a value back, or, as older checkpoints have it, the value itself."""
        if saved.dtype == torch.int16:
            self.rest.copy_(saved)
            return
        self.open()
        self.value.detach().copy_(saved)
        self.close()

    def sum_up(self, *_: Any) -> None:
        """Move the weight's gradient to the value's, in float32."""
        given, self.weight.grad = self.weight.grad, None
        if given is None:
            return
        if self.value.grad is None:
            self.value.grad = given.float().contiguous()
            return
        # A sum of two types makes a copy of the second: never of a whole embedding.
        totals = torch.split(self.value.grad.view(-1), _ADDED)
        for total, part in zip(totals, torch.split(given.reshape(-1), _ADDED), strict=True):
            total.add_(part)


def with_masters(make: Callable[[Any], Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """Make an optimizer whose bfloat16 parameters are held in float32.

    It is the optimizer that ``make`` returns, but for its ``step``, which opens the masters of some
    16 million weights at a time; its ``state_dict`` has what rounding took away, and its
    parameters are what is to be clipped (`stepped`). Where no parameter is in bfloat16 it is left
    as it is. In one process gradients are summed up in float32 over micro-batches; where a wrapper
    reduces the model's own gradients over processes, they are summed up as that does.

    Args:
        make: Optimizer of parameter groups.
        groups: Parameter groups of a model.

    Returns:
        The optimizer.
    """
    masters: list[Master] = []

    def held(parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype != torch.bfloat16:
            return parameter
        masters.append(Master(parameter))
        return masters[-1].value

    optimizer = make([{**group, "params": [held(p) for p in group["params"]]} for group in groups])
    if masters:
        _connect(optimizer, masters)
    return optimizer


def stepped(optimizer: Any) -> list[nn.Parameter]:
    """Hand the gradients to the parameters that a step moves, where they are to be clipped.

    Args:
        optimizer: Any, or Lightning's wrapper of one.

    Returns:
        The values of masters, of which only the gradients are there to be read, and the other
        weights themselves.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        if (master := getattr(parameter, "master", None)) is not None:
            master.sum_up()
    return parameters


def _connect(optimizer: Optimizer, masters: list[Master]) -> None:
    for master in masters:
        # A second optimizer over the same weights takes over from the first.
        if (old := getattr(master.weight, "of_master", None)) is not None:
            old.remove()
        if not torch.distributed.is_initialized():
            hook: Any = master.weight.register_post_accumulate_grad_hook
            master.weight.of_master = hook(master.sum_up)  # type: ignore[attr-defined]

    def save(_optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, _KEY: [master.rest for master in masters]}

    def load(_optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        for master, saved in zip(masters, state.get(_KEY, ()), strict=_KEY in state):
            master.load(saved)
        return {name: value for name, value in state.items() if name != _KEY}

    plain = type(optimizer).step

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        return _step_by_turns(plain, self, closure)

    for group in optimizer.param_groups:
        _spare(group)
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)


def _spare(group: dict[str, Any]) -> None:
    """Choose the kernel that needs no copies of the parameters, where torch would not."""
    free = group.get("fused", True) is None and not group.get("foreach")
    if free and all(parameter.device.type == "cpu" for parameter in group["params"]):
        group["fused"] = True


def _step_by_turns(step: Callable[..., Any], optimizer: Any, closure: Any) -> Any:
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    whole = [group["params"] for group in optimizer.param_groups]
    try:
        for turn in _turns(optimizer, whole):
            masters = [p.master for params in turn for p in params if hasattr(p, "master")]
            for group, params in zip(optimizer.param_groups, turn, strict=True):
                group["params"] = params
            for master in masters:
                master.open()
            step(optimizer)
            for master in masters:
                master.close()
    finally:
        for group, params in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = params
    return loss


def _turns(optimizer: Any, whole: list[list[nn.Parameter]]) -> Iterator[list[list[nn.Parameter]]]:
    """Cut the parameters with a gradient into turns; torch's own rules move each by itself."""
    alone = type(optimizer).__module__.startswith("torch.optim")
    turn: list[list[nn.Parameter]] = [[] for _ in whole]
    size = 0
    for own, params in zip(turn, whole, strict=True):
        for parameter in params:
            if parameter.grad is None:
                continue
            if alone and size and size + parameter.numel() > _TURN:
                yield [list(params) for params in turn]
                for one in turn:
                    one.clear()
                size = 0
            own.append(parameter)
            size += parameter.numel()
    yield turn
