"""The loss of one optimizer step: aggregation, KL, entropy bonus, and the critic's loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.errors import UserError
from rlzoo.objective.corrections import Correction, combined_weights, correction_stats
from rlzoo.objective.ratio_stats import spread_stats
from rlzoo.ops import (
    LOG_RATIO_BOUND,
    Aggregation,
    Denominators,
    KLEstimator,
    aggregation_weights,
    kl_penalty,
    token_ratio,
)
from rlzoo.types import PolicyBatch
from rlzoo.types.stats import Stats

_DATA = ("old_log_probs", "rollout_log_probs", "ref_log_probs", "advantages")
_MISMATCH: dict[str, KLEstimator] = {"policy/mismatch_kl": "k3", "policy/mismatch_kl_k1": "k1"}


@dataclass(frozen=True)
class KLPenalty:
    """How the policy is held near a reference.

    Args:
        coefficient: Weight (beta) of the penalty; 0 is off.
        estimator: k1, k2 or k3 from one sampled token; see ``rlzoo.ops.kl_penalty``.
        placement: ``loss`` adds beta * KL to the loss; ``reward`` takes beta * KL from each token's
            reward before advantages are estimated.
        ratio_corrected: Multiply the estimate by the token's importance ratio, which makes the
            gradient of k3 unbiased (DeepSeek-V3.2, arXiv 2512.02556); only for ``loss``.
    """

    coefficient: float = 0.0
    estimator: KLEstimator = "k3"
    placement: Literal["loss", "reward"] = "loss"
    ratio_corrected: bool = False

    def __post_init__(self) -> None:
        if not self.coefficient >= 0:
            raise UserError(f"kl.coefficient must be >= 0, got {self.coefficient}")
        if self.ratio_corrected and self.placement == "reward":
            raise UserError(
                "kl.ratio_corrected has no effect with kl.placement=reward; set one of them back"
            )

    @property
    def in_loss(self) -> bool:
        """Whether the loss carries the penalty."""
        return self.coefficient > 0 and self.placement == "loss"

    @property
    def in_reward(self) -> bool:
        """Whether the reward carries the penalty."""
        return self.coefficient > 0 and self.placement == "reward"


class Loss(NamedTuple):
    """A scalar to minimize, this micro-batch's share of the step, and what to log."""

    loss: Tensor
    stats: Stats


def policy_loss(
    algorithm: Algorithm,
    batch: PolicyBatch,
    denominators: Denominators,
    *,
    aggregation: Aggregation | None = None,
    length: int = 1,
    kl: KLPenalty | None = None,
    entropy_coefficient: float = 0.0,
    corrections: Sequence[Correction] = (),
) -> Loss:
    """Return this micro-batch's share of the loss of one optimizer step.

    ``loss = sum_it w_it (-c_it objective_it + beta KL_it) - c_e mean_t entropy``; the weights w are
    set by the aggregation and the counts of the whole step: shares add up to the same number
    however the step is cut into micro-batches and ranks. The corrections c are detached and change
    neither the KL term nor any count.

    Args:
        algorithm: Ratio and clip.
        batch: Tensors of the micro-batch.
        denominators: Counts over all micro-batches and ranks of the step.
        aggregation: Overrides the algorithm's own.
        length: The constant of ``constant-length``, in tokens.
        kl: Penalty; needs ``batch.ref_log_probs`` when it is in the loss.
        entropy_coefficient: Weight of the entropy bonus; needs ``batch.entropy``.
        corrections: Detached multipliers of the objective.

    Returns:
        The loss and its statistics.

    Raises:
        FloatingPointError: If an unmasked input is NaN or infinite.
        ValueError: If a field that is needed is missing.
    """
    _check_batch(algorithm, batch, kl, entropy_coefficient, corrections)
    batch = _with_data_detached(batch)
    ratio = algorithm.ratio(batch)
    surrogate = algorithm.clip(ratio, batch)
    _check_surrogate(algorithm, surrogate, batch)
    stats = _policy_stats(ratio, surrogate, batch)
    token_loss = -surrogate.objective
    if corrections:
        weights = combined_weights(corrections, batch)
        stats.merge([correction_stats(weights, batch.mask)])
        token_loss = torch.where(batch.mask, token_loss, 0.0) * weights
    if batch.ref_log_probs is not None:
        estimator = kl.estimator if kl else "k3"
        divergence = kl_penalty(batch.log_probs, batch.ref_log_probs, estimator)
        stats.add_masked("policy/kl_ref", divergence, batch.mask)
        if kl is not None and kl.in_loss:
            if kl.ratio_corrected:
                divergence = token_ratio(batch.log_probs, batch.old_log_probs) * divergence
            token_loss = token_loss + kl.coefficient * divergence
    loss = _weighted_sum(
        token_loss, batch, denominators, aggregation or algorithm.aggregation, length
    )
    if batch.entropy is not None:
        stats.add_masked("policy/entropy", batch.entropy, batch.mask)
        if entropy_coefficient:
            entropy = _weighted_sum(batch.entropy, batch, denominators, "token-mean", 1)
            loss = loss - entropy_coefficient * entropy
    stats.add("policy/loss", loss, 0)
    return Loss(loss, stats)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    denominators: Denominators,
    *,
    clip: float,
) -> Loss:
    """Return this micro-batch's share of the critic's clipped squared error.

    ``0.5 mean_t max( (value_t - return_t)^2, (bounded_t - return_t)^2 )``, the token-mean of the
    step, ``bounded_t = clip(value_t, old_value_t - clip, old_value_t + clip)``.

    Source: PPO2; arXiv 2005.12729, section 3.

    Args:
        values: (N, T) with gradient.
        old_values: (N, T) before the update.
        returns: (N, T) targets.
        mask: (N, T) bool.
        denominators: Counts of the whole step.
        clip: How far a value may move per iteration; infinity is off.

    Returns:
        The loss and its statistics.
    """
    zero = values.new_zeros(())
    values, old, target = (torch.where(mask, x, zero) for x in (values, old_values, returns))
    plain = (values - target).square()
    bounded = (old + (values - old).clamp(-clip, clip) - target).square()
    weights = aggregation_weights(mask, denominators, "token-mean")
    loss = 0.5 * (weights * torch.maximum(plain, bounded).double()).sum().to(values.dtype)
    stats = Stats()
    stats.add("value/loss", loss, 0)
    clipped = (bounded > plain) & ((values - old).abs() > clip)
    stats.add_masked("value/clip_fraction", clipped, mask)
    stats.add_masked("value/mean", values, mask)
    return Loss(loss, stats)


def _weighted_sum(
    values: Tensor,
    batch: PolicyBatch,
    denominators: Denominators,
    aggregation: Aggregation,
    length: int,
) -> Tensor:
    weights = aggregation_weights(
        batch.mask, denominators, aggregation, length=length, group_ids=batch.group_ids
    )
    # In float64: the padded width sets the order of the sum, and must not show in it.
    kept = torch.where(batch.mask, values, 0.0).double()
    return (weights * kept).sum().to(values.dtype)


def _check_batch(
    algorithm: Algorithm,
    batch: PolicyBatch,
    kl: KLPenalty | None,
    entropy_coefficient: float,
    corrections: Sequence[Correction],
) -> None:
    needs = set(algorithm.needs).union(*(correction.needs for correction in corrections))
    if kl is not None and kl.in_loss:
        needs.add("ref_log_probs")
    if entropy_coefficient:
        needs.add("entropy")
    if missing := needs - batch.names():
        raise ValueError(f"policy_loss: the batch lacks {sorted(missing)}")
    for name in ("log_probs", *_DATA, "entropy"):
        value = getattr(batch, name)
        if value is not None and not bool(torch.isfinite(value).all()):
            row, token = (~torch.isfinite(value)).nonzero()[0].tolist()
            raise FloatingPointError(
                f"policy_loss: {name} is {float(value[row, token])} at row {row}, token {token}"
            )


def _with_data_detached(batch: PolicyBatch) -> PolicyBatch:
    given = {name: getattr(batch, name) for name in _DATA}
    return replace(batch, **{k: v.detach() for k, v in given.items() if v is not None})


def _check_surrogate(algorithm: Algorithm, surrogate: Surrogate, batch: PolicyBatch) -> None:
    for name, value in surrogate._asdict().items():
        if value.shape != batch.mask.shape:
            raise UserError(
                f"{type(algorithm).__name__}.clip returned {name} of shape {tuple(value.shape)}; "
                f"it must be (N, T) = {tuple(batch.mask.shape)}"
            )


def _policy_stats(ratio: Tensor, surrogate: Surrogate, batch: PolicyBatch) -> Stats:
    stats, mask = Stats(), batch.mask
    with torch.no_grad():
        ratio = ratio.detach().expand_as(mask)
        log_ratio = batch.log_probs - batch.old_log_probs
        clipped = surrogate.clipped & mask
        whole = (clipped | ~mask).all(-1) & mask.any(-1)
        stats.add_masked("policy/clip_fraction", clipped, mask)
        stats.add_masked("policy/clipped_answers", whole, mask.any(-1))
        stats.add_masked("policy/ratio_mean", ratio, mask)
        stats.maximum("policy/ratio_max", torch.where(mask, ratio, 0.0).max())
        stats.maximum("policy/log_ratio_abs_max", log_ratio.abs().max())
        stats.add("policy/ratio_bounded", (log_ratio.abs() > LOG_RATIO_BOUND).sum(), mask.sum())
        bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        stats.add_masked("policy/kl_old", bounded.exp() - 1 - bounded, mask)
        stats.add_masked("policy/log_prob", batch.log_probs, mask)
        stats.merge([spread_stats(log_ratio, mask)])
        if batch.rollout_log_probs is not None:
            for name, estimator in _MISMATCH.items():
                gap = kl_penalty(batch.rollout_log_probs, batch.old_log_probs, estimator)
                stats.add_masked(name, gap, mask)
    return stats
