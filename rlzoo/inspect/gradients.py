"""Gradients of many objectives on the same answers: direction, size, signal over noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlzoo.inspect.frozen import Frozen, rows_of_parts
from rlzoo.inspect.tokens import TokenView
from rlzoo.models.base import Policy


@dataclass
class Gradient:
    """An objective's gradient, summed over prompt groups.

    Attributes:
        parts: One tensor per trained parameter.
        squares: ``sum_p |g_p|^2`` over groups.
        groups: n, groups that take part in the step, without signal or not.
    """

    parts: list[Tensor]
    squares: float = 0.0
    groups: int = 0

    @property
    def norm(self) -> float:
        """Length of the gradient of the whole step."""
        return math.sqrt(dot(self.parts, self.parts))

    @property
    def signal_to_noise(self) -> float:
        """See the function."""
        return signal_to_noise(self.norm**2, self.squares, self.groups)


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Return the inner product of two lists of tensors, in float64."""
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))


def signal_to_noise(total_square: float, squares: float, groups: int) -> float:
    """Return how far a mean of gradients stands out of its own noise.

    ``|m|^2 / (v / n)``, ``m = (1/n) sum_p g_p``, ``v = 1/(n-1) sum_p |g_p - m|^2`` over the n
    prompt groups. Noise alone gives about 1, and twice the prompts about double what is above it.

    Args:
        total_square: ``|sum_p g_p|^2``.
        squares: ``sum_p |g_p|^2``.
        groups: n.

    Returns:
        The ratio; NaN for less than two groups or no gradient, infinity for no variance.
    """
    if groups < 2 or not squares:
        return math.nan
    mean = total_square / groups**2
    variance = max(0.0, squares - groups * mean) / (groups - 1)
    return mean * groups / variance if variance > 1e-12 * squares else math.inf


def gradients(policy: Policy, frozen: Frozen, views: dict[str, TokenView]) -> dict[str, Gradient]:
    """Return each objective's gradient by the policy's weights, group by group.

    One forward pass per part of a group serves all objectives: ``d loss / d log_probs`` is known
    already and is sent back through the model.

    Args:
        policy: The weights.
        frozen: The answers.
        views: The objectives.

    Returns:
        Gradients under the same names.
    """
    policy.training_mode()
    parameters = [p for p in policy.parameters() if p.requires_grad]
    found = {name: Gradient([torch.zeros_like(p) for p in parameters]) for name in views}
    for group in sorted(set(frozen.rollouts.group_ids.tolist())):
        rows = ((frozen.rollouts.group_ids == group) & frozen.mask.any(-1)).nonzero().flatten()
        if not len(rows):
            continue
        of_group: dict[str, list[Tensor]] = {}
        for part in rows_of_parts(frozen.experience, rows, frozen.micro_batch_tokens):
            add_part(policy, frozen, part, views, parameters, of_group)
        for name, gradient in found.items():
            gradient.groups += 1
            if name in of_group:
                gradient.squares += dot(of_group[name], of_group[name])
                for total, part in zip(gradient.parts, of_group[name], strict=True):
                    total.add_(part)
    return found


def add_part(
    policy: Policy,
    frozen: Frozen,
    rows: Tensor,
    views: dict[str, TokenView],
    parameters: list[torch.nn.Parameter],
    of_group: dict[str, list[Tensor]],
) -> None:
    """Add the gradients of some rows of a group to those of the group."""
    live = {k: v for k, v in views.items() if bool((v.by_log_prob[rows] != 0).any())}
    if not live:
        return
    wants_entropy = any(view.by_entropy is not None for view in live.values())
    predicted = policy.log_probs(frozen.rollouts.sequences(rows), frozen.temperature, wants_entropy)
    width = predicted.log_probs.shape[1]
    for name, view in live.items():
        outputs, pulls = [predicted.log_probs], [view.by_log_prob[rows, :width]]
        if view.by_entropy is not None and predicted.entropy is not None:
            outputs.append(predicted.entropy)
            pulls.append(view.by_entropy[rows, :width])
        new = torch.autograd.grad(
            outputs,
            parameters,
            [pull.to(out.dtype) for pull, out in zip(pulls, outputs, strict=True)],
            retain_graph=True,
            materialize_grads=True,
        )
        sums = of_group.setdefault(name, [torch.zeros_like(p) for p in parameters])
        for total, part in zip(sums, new, strict=True):
            total.add_(part)


def cosines(found: dict[str, Gradient]) -> list[list[float]]:
    """Return ``<a, b> / (|a| |b|)`` for every pair; NaN where a gradient is 0."""
    norms = {name: gradient.norm for name, gradient in found.items()}
    rows = []
    for a, of_a in found.items():
        row = []
        for b, of_b in found.items():
            scale = norms[a] * norms[b]
            cosine = dot(of_a.parts, of_b.parts) / scale if scale else math.nan
            row.append(max(-1.0, min(1.0, cosine)) if scale else math.nan)
        rows.append(row)
    return rows
