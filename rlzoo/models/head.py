"""The LM head and the log-softmax in one pass, in blocks that fit the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def plain_weight(head: Any) -> Tensor | None:
    """Return the matrix of an LM head that is nothing but a matrix.

    Args:
        head: The module.

    Returns:
        (V, H), or None for a bias, an adapter, a quantized or sharded weight, or a head on which
        something hooks: then the module itself has to be called.
    """
    if type(head) is not nn.Linear:
        return None
    weight, bias = head._parameters["weight"], head._parameters["bias"]
    hooked = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks
    if hooked or bias is not None or type(weight) is not nn.Parameter:
        return None
    return weight if weight.shape == (head.out_features, head.in_features) else None


def linear_log_probs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
) -> Tensor:
    """Give one target per hidden state its log-probability, in fp32.

    ``log softmax(hidden @ weight.T / temperature)[target]``

    Value and gradient are those of the plain formula; at most two (chunk, V) blocks are alive.

    Args:
        hidden: (M, H).
        weight: (V, H).
        targets: (M,) long.
        temperature: Divides the logits.
        chunk: Tokens per block.

    Returns:
        (M,) fp32.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        # Cast by hand: the backward pass runs outside of autocast and needs operands of one type.
        half = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(half), weight.to(half)
    with torch.autocast(kind, enabled=False):
        found: Tensor = _LogProbs.apply(hidden, weight, targets, temperature, chunk)  # type: ignore[no-untyped-call]
    return found


class _LogProbs(torch.autograd.Function):
    """d log_prob_i / d hidden_i = (onehot(target_i) - softmax_i) @ weight / temperature.

    The gradient of the weight is summed over blocks in the weight's own type. The last block of
    logits waits for the backward pass; the others are computed again.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
    ) -> Tensor:
        log_probs = hidden.new_empty(len(hidden), dtype=torch.float32)
        normalizer = torch.empty_like(log_probs)
        logits = None
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            del logits
            logits = _logits(hidden[part], weight, temperature)
            normalizer[part] = logits.logsumexp(-1)
            chosen = logits.gather(-1, targets[part, None]).squeeze(-1)
            log_probs[part] = chosen - normalizer[part]
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(hidden, weight, targets, normalizer)
            ctx.last, ctx.temperature, ctx.chunk = logits, temperature, chunk
        return log_probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, targets, normalizer = ctx.saved_tensors
        scale = grads[0] / ctx.temperature
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        of_hidden = torch.zeros_like(hidden) if wants_hidden else None
        of_weight: Tensor | None = None
        for start in reversed(range(0, len(hidden), ctx.chunk)):
            part = slice(start, start + ctx.chunk)
            block, ctx.last = ctx.last, None
            if block is None:
                block = _logits(hidden[part], weight, ctx.temperature)
            block.sub_(normalizer[part, None]).exp_().mul_(-scale[part, None])
            block.scatter_add_(-1, targets[part, None], scale[part, None])
            block = block.to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[part] = block @ weight
            if of_weight is not None:
                of_weight.addmm_(block.T, hidden[part])
            elif wants_weight:
                of_weight = block.T @ hidden[part]
        if wants_weight and of_weight is None:
            of_weight = torch.zeros_like(weight)
        return of_hidden, of_weight, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)
