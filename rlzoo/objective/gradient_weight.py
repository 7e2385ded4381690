"""The gradient weight of one token under an objective, found by trying it."""

from __future__ import annotations

import math
import re

import torch

from rlzoo.algorithms.base import Algorithm
from rlzoo.objective.loss import policy_loss
from rlzoo.ops import Denominators, aggregation_weights
from rlzoo.types import PolicyBatch

FAR = 6.0
"""A ratio that every band and cap is meant to stop."""


def gradient_weight(algorithm: Algorithm, ratio: float, advantage: float) -> float:
    """Return g, where d loss / d log_prob = -(weight of the token) * g * A, for one token.

    The token is an answer of its own, in a group with one that has ratio 1 and the opposite
    advantage, and one that has ratio 1 and no advantage.

    Args:
        algorithm: The objective.
        ratio: New over old probability of the token.
        advantage: +1 or -1.

    Returns:
        g; 1 is a plain policy gradient, 0 a token that lost its gradient.
    """
    old = torch.full((3, 1), -1.5, dtype=torch.float64)
    log_probs = old + torch.tensor([[math.log(ratio)], [0.0], [0.0]], dtype=torch.float64)
    log_probs.requires_grad_()
    group_ids = torch.zeros(3, dtype=torch.long)
    mask = torch.ones(3, 1, dtype=torch.bool)
    batch = PolicyBatch(
        log_probs=log_probs,
        old_log_probs=old,
        advantages=torch.tensor([[advantage], [-advantage], [0.0]], dtype=torch.float64),
        mask=mask,
        rollout_log_probs=old,
        ref_log_probs=old,
        entropy=torch.full((3, 1), 0.5, dtype=torch.float64),
        group_ids=group_ids,
        token_ids=torch.tensor([[1], [2], [3]]),
    )
    denominators = Denominators.count(mask, group_ids)
    policy_loss(algorithm, batch, denominators, length=1).loss.backward()  # type: ignore[no-untyped-call]
    weights = aggregation_weights(
        mask, denominators, algorithm.aggregation, length=1, group_ids=group_ids
    )
    assert log_probs.grad is not None
    return -float(log_probs.grad[0, 0] / weights[0, 0]) / advantage


def ratio_unit(algorithm: Algorithm) -> str:
    """Return what one ratio belongs to: ``answer`` or ``token``.

    It is an answer's if the ratio of one token depends on the log-probability of the next.
    """
    log_probs = torch.full((1, 2), -1.0, dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-1.1, -1.2]], dtype=torch.float64)
    batch = PolicyBatch(
        log_probs=log_probs,
        old_log_probs=old,
        advantages=torch.ones(1, 2, dtype=torch.float64),
        mask=torch.ones(1, 2, dtype=torch.bool),
        rollout_log_probs=old,
        ref_log_probs=old,
        entropy=torch.full((1, 2), 0.5, dtype=torch.float64),
        group_ids=torch.zeros(1, dtype=torch.long),
        token_ids=torch.tensor([[1, 2]]),
    )
    ratio = algorithm.ratio(batch)
    if ratio.shape[-1] == 1:
        return "answer"
    moved = PolicyBatch(**{**vars(batch), "log_probs": log_probs + torch.tensor([[0.0, 0.3]])})
    return "token" if torch.equal(algorithm.ratio(moved)[:, 0], ratio[:, 0]) else "answer"


def clip_effect(algorithm: Algorithm) -> str:
    """Return what becomes of a token's gradient far from ratio 1.

    ``gradient`` where it is lost, ``weight`` where it is kept but its weight is not the ratio, and
    ``nothing`` where the weight is the ratio, or 1, throughout.
    """
    cases = [(r, a) for r in (1 / FAR, FAR) for a in (1.0, -1.0)]
    weights = [gradient_weight(algorithm, r, a) for r, a in cases]
    if any(weight == 0 for weight in weights):
        return "gradient"
    plain = all(math.isclose(w, r, rel_tol=1e-6) for w, (r, _) in zip(weights, cases, strict=True))
    constant = all(math.isclose(w, 1, rel_tol=1e-6) for w in weights)
    return "nothing" if plain or constant else "weight"


def sources(cls: type[Algorithm]) -> str:
    """Return the arXiv ids that the docstring gives as the source."""
    text = (cls.__doc__ or "").partition("Source:")[2].partition("\n\n")[0]
    return ", ".join(dict.fromkeys(re.findall(r"\d{4}\.\d{4,5}", text)[:1]))
