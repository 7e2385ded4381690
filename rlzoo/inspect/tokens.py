"""Token views: which tokens of frozen answers an objective keeps, and at what weight."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlzoo.advantages import Advantage, GroupNormalized, default_advantage
from rlzoo.algorithms import Algorithm, discover
from rlzoo.errors import UserError, nearest, one_line
from rlzoo.inspect.frozen import Frozen
from rlzoo.objective.loss import policy_loss
from rlzoo.ops import Aggregation, aggregation_weights, masked_mean, masked_sum
from rlzoo.training.settings import Settings
from rlzoo.types import PolicyBatch

SUPPLIED = frozenset({"rollout_log_probs", "entropy", "group_ids", "token_ids"})
"""Optional fields that frozen answers come with."""
LOST = 1e-12
"""A weight of at most this is rounding: the token has lost its gradient."""

MARKS = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
"""Which weights are shown, by their rank."""


@dataclass(frozen=True)
class Chosen:
    """An objective to look at, with what its formula leaves to others.

    Attributes:
        name: As shown.
        algorithm: Ratio and clip.
        advantage: Estimator.
        aggregation: How token losses become one number.
        notes: What a reader must know.
    """

    name: str
    algorithm: Algorithm
    advantage: Advantage
    aggregation: Aggregation
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenView:
    """One objective on all answers, as seen from the log-probs.

    Attributes:
        loss: The step's loss.
        by_log_prob: (N, T) float64, d loss / d log_probs.
        by_entropy: (N, T) float64, d loss / d entropy, or None if it does not matter.
        weight: (N, T) g, where ``d loss / d log_probs = -w g A``; 0 where there is no signal.
        signal: (N, T) bool, tokens that train and have an advantage.
        pull: (N, T), what g = 1 would do to the logit of the sampled token, ``w |A| (1 - p)``.
    """

    loss: float
    by_log_prob: Tensor
    by_entropy: Tensor | None
    weight: Tensor
    signal: Tensor
    pull: Tensor


def find(name: str) -> type[Algorithm]:
    """Return an objective of the zoo, or a user's by its dotted path.

    Raises:
        UserError: If there is none.
    """
    zoo = discover()
    if name in zoo:
        return zoo[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise UserError(f"no objective '{name}'; {nearest(name, list(zoo))}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"no objective '{name}': {error}") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UserError(f"'{name}' is not an objective; it must derive from Algorithm")
    return found


def choose(
    classes: Sequence[type[Algorithm]], settings: Settings, group_size: int
) -> tuple[list[Chosen], dict[str, str]]:
    """Set objectives up: the run's own with the run's settings, others with their defaults.

    Args:
        classes: The objectives; one given twice is looked at once.
        settings: The run's.
        group_size: G.

    Returns:
        What can be looked at, and reasons by name of what cannot.
    """
    own = type(settings.algorithm)
    chosen: dict[str, Chosen] = {}
    left_out: dict[str, str] = {}
    for cls in dict.fromkeys(classes):
        name = cls.__name__
        if name in chosen or name in left_out:
            name = f"{cls.__module__}.{name}"
        try:
            if cls is own:
                given = settings.aggregation or settings.algorithm.aggregation
                setup = (settings.algorithm, settings.estimator, given)
            else:
                made = cls()
                setup = (made, default_advantage(made.advantage), made.aggregation)
            notes = ("the checkpoint's settings",) if cls is own else ()
            chosen[name] = arranged(name, *setup, group_size, notes)
        except (UserError, TypeError) as error:
            left_out[name] = one_line(error)
    return list(chosen.values()), left_out


def arranged(
    name: str,
    algorithm: Algorithm,
    advantage: Advantage,
    aggregation: Aggregation,
    group_size: int,
    notes: tuple[str, ...] = (),
) -> Chosen:
    """Return an objective whose needs are met, group advantages in a critic's place.

    Raises:
        UserError: With the need that is not.
    """
    if advantage.needs_values:
        advantage = GroupNormalized()
        notes = (*notes, "group advantages instead of a critic's")
    if missing := sorted(set(algorithm.needs) - SUPPLIED):
        raise UserError(f"needs {', '.join(missing)}, which frozen answers do not have")
    if group_size < advantage.minimum_group:
        raise UserError(
            f"its advantage {type(advantage).__name__} needs a group of {advantage.minimum_group}"
        )
    if advantage.per_token and algorithm.one_advantage_per_answer:
        raise UserError(
            f"{type(advantage).__name__} gives every token its own advantage, and it clips whole "
            "answers by one"
        )
    return Chosen(name, algorithm, advantage, aggregation, notes)


def look(chosen: Chosen, frozen: Frozen) -> TokenView:
    """Compute an objective's loss over all answers, and its gradient by token.

    The whole set is one step, in float64: objectives that look at a group or at all tokens see
    all of them.

    Args:
        chosen: The objective.
        frozen: The answers.

    Returns:
        Its view.

    Raises:
        UserError: If the objective cannot be computed on them.
    """
    advantages = frozen.advantages(chosen.advantage)
    log_probs = frozen.log_probs.double().requires_grad_()
    entropy = frozen.entropy.double().requires_grad_()
    batch = PolicyBatch(
        log_probs=log_probs,
        old_log_probs=frozen.old_log_probs.double(),
        advantages=advantages,
        mask=frozen.mask,
        rollout_log_probs=frozen.rollouts.log_probs.double(),
        entropy=entropy if "entropy" in chosen.algorithm.needs else None,
        group_ids=frozen.rollouts.group_ids,
        token_ids=frozen.rollouts.token_ids,
    )
    options: dict[str, Any] = {"length": frozen.length, "aggregation": chosen.aggregation}
    try:
        loss = policy_loss(chosen.algorithm, batch, frozen.denominators, **options).loss
        found = torch.autograd.grad(loss, (log_probs, entropy), allow_unused=True)
    except (ValueError, FloatingPointError, RuntimeError) as error:
        raise UserError(one_line(error)) from error
    by_log_prob = found[0] if found[0] is not None else torch.zeros_like(log_probs)
    if not bool(torch.isfinite(by_log_prob).all()):
        raise UserError("its gradient is not finite on these answers")
    weights = aggregation_weights(
        frozen.mask,
        frozen.denominators,
        chosen.aggregation,
        length=frozen.length,
        group_ids=frozen.rollouts.group_ids,
    )
    signal = frozen.mask & (batch.advantages != 0)
    scale = torch.where(signal, -weights * batch.advantages, 1.0)
    weight = torch.where(signal, by_log_prob / scale, 0.0) + 0.0  # no -0
    pull = weights * batch.advantages.abs() * -torch.expm1(frozen.log_probs.double())
    return TokenView(float(loss.detach()), by_log_prob, found[1], weight, signal, pull)


def summary(view: TokenView) -> dict[str, float]:
    """Return the shares that keep their gradient, and how heavy they are.

    ``kept_tokens = #{g != 0} / #{A != 0}``, the same over answers with a token kept, and
    ``kept_pull = sum_{g != 0} w |A| (1 - p) / sum w |A| (1 - p)``: a token that the policy was sure
    of moves its logits by little, so its clip costs little;
    ``weight_ess = (sum |g|)^2 / (n sum g^2)`` over the n tokens with an advantage.
    """
    kept = view.signal & (view.weight.abs() > LOST)
    answers = view.signal.any(-1)
    weights = view.weight[view.signal]
    if not len(weights):
        raise UserError("no token has an advantage")
    ordered, last = weights.sort().values, len(weights) - 1
    marks = {name: float(ordered[round(share * last)]) for name, share in MARKS.items()}
    return {
        "loss": view.loss,
        "kept_tokens": float(kept.sum() / view.signal.sum()),
        "kept_answers": float((kept.any(-1) & answers).sum() / answers.sum()),
        "kept_pull": float(view.pull[kept].sum() / view.pull[view.signal].sum().clamp(min=1e-30)),
        **{f"weight_{name}": mark for name, mark in marks.items()},
        "weight_ess": effective_share(weights.abs()),
    }


def effective_share(weights: Tensor) -> float:
    """Return the effective sample size as a share, ``(sum w)^2 / (n sum w^2)``; 0 if all are 0."""
    weights = weights.double()
    square = float(weights.square().sum())
    return float(weights.sum()) ** 2 / (weights.numel() * square) if square else 0.0


def ratio_summary(frozen: Frozen) -> dict[str, float]:
    """Return how far the policy has moved on these answers, by token and by answer.

    ``d_t = log_probs_t - old_log_probs_t`` per token, ``sum_t d_t`` per answer (the log-ratio of
    its probability) and ``(1/|y|) sum_t d_t`` (log s_i of GSPO).
    """
    moved, mask = (frozen.log_probs - frozen.old_log_probs).double(), frozen.mask
    live = mask.any(-1)
    token = moved[mask]
    answer = masked_sum(moved, mask).squeeze(-1)[live]
    mean = masked_mean(moved, mask).squeeze(-1)[live]
    found: dict[str, float] = {}
    for name, values in (("token", token), ("answer", answer), ("answer_mean", mean)):
        found[f"{name}_ess"] = effective_share((values - values.max()).exp())
        found[f"{name}_log_ratio_std"] = float(values.std(correction=0))
        found[f"{name}_log_ratio_min"] = float(values.min())
        found[f"{name}_log_ratio_max"] = float(values.max())
    return found


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return the constructor's arguments as the objective holds them."""
    names = inspect.signature(type(algorithm)).parameters
    return {name: getattr(algorithm, name) for name in names if hasattr(algorithm, name)}
