"""Detached weights on the objective: sampler-trainer mismatch, staleness, selection of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm
from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError, nearest
from rlzoo.ops import bounded_exp, masked_mean, masked_sum
from rlzoo.types import PolicyBatch
from rlzoo.types.stats import Stats

Level = Literal["token", "sequence", "geometric"]


class Correction(Recorded, ABC):
    """A detached multiplier of the objective, one per token.

    Applied after ratio and clip and before the KL term, which is not multiplied; the entropy bonus
    is not either. Denominators stay: a rejected token counts as one that taught nothing.

    Attributes:
        needs: Optional fields of the batch that it reads.
        reweights: Whether it multiplies by the ratio of trainer to sampler; only one may.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"rollout_log_probs"})
    reweights: ClassVar[bool] = False

    @abstractmethod
    def weights(self, batch: PolicyBatch) -> Tensor:
        """Return the multipliers, (N, T) or (N, 1), from each answer alone."""


def per_token(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return the log-ratio of each token, (N, T)."""
    return log_ratio


LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": per_token,
    "sequence": masked_sum,
    "geometric": masked_mean,
}
"""How the log-ratios d of an answer's tokens become the log of its weight."""


def sampler_ratio(batch: PolicyBatch, level: Level) -> Tensor:
    """Importance weight of the trainer against the sampler, from the weights that sampled.

    ``d_t = old_log_probs_t - rollout_log_probs_t``; ``w = exp(d_t)`` per token, ``exp(sum_t d_t)``
    per sequence, ``exp( (1/|y|) sum_t d_t )`` geometric.

    Args:
        batch: Needs ``rollout_log_probs``.
        level: token, sequence or geometric.

    Returns:
        (N, T) or (N, 1); exactly 1 where sampler and trainer agree.
    """
    assert batch.rollout_log_probs is not None
    log_ratio = batch.old_log_probs - batch.rollout_log_probs
    return bounded_exp(LEVELS[level](log_ratio, batch.mask))


class TruncatedIS(Correction):
    """Importance weight of trainer against sampler, cut from above.

    ``min(w, cap)``, with w of ``sampler_ratio``.

    Source: TIS, as in verl and slime; the token form is that of IMPALA's V-trace, arXiv 1802.01561.
    The product over an answer grows and shrinks with its length: a systematic gap of 0.01 nats
    per token is a factor e^10 over 1000 tokens. The geometric mean is not an importance weight; it
    measures how far an answer is off.

    Args:
        level: token, sequence (product over the answer) or geometric (its geometric mean).
        cap: Largest weight; by default 2.0, or 1.1 for geometric.
    """

    reweights: ClassVar[bool] = True

    def __init__(self, level: Level = "token", cap: float | None = None) -> None:
        self.level = _level(self, level)
        self.cap = cap if cap is not None else 1.1 if level == "geometric" else 2.0
        if not self.cap > 0:
            raise UserError(f"TruncatedIS: cap must be > 0, got {cap}")

    def weights(self, batch: PolicyBatch) -> Tensor:
        """Return ``min(w, cap)``."""
        return sampler_ratio(batch, self.level).clamp(max=self.cap)


class MaskedIS(Correction):
    """Importance weight of trainer against sampler inside a band, and 0 outside it.

    ``w 1[low <= w <= high]``, with w of ``sampler_ratio``. The band is on w itself, not on 1 / w.

    Source: IcePop, arXiv 2510.18855, section 3 (per token, there 0.5 to 5).

    Args:
        level: token, sequence (product over the answer) or geometric (its geometric mean).
        low: Smallest weight that is kept; by default 0.5, or 0.8 for geometric.
        high: Largest weight that is kept; by default 2.0, or 1.3 for geometric.
    """

    reweights: ClassVar[bool] = True

    def __init__(
        self, level: Level = "token", low: float | None = None, high: float | None = None
    ) -> None:
        self.level = _level(self, level)
        defaults = (0.8, 1.3) if level == "geometric" else (0.5, 2.0)
        self.low = defaults[0] if low is None else low
        self.high = defaults[1] if high is None else high
        if not 0 <= self.low < self.high:
            raise UserError(
                f"MaskedIS: low {self.low} and high {self.high} must be 0 <= low < high; they "
                "bound the weight, which is 1 where sampler and trainer agree"
            )

    def weights(self, batch: PolicyBatch) -> Tensor:
        """Return ``w`` in the band, 0 outside."""
        ratio = sampler_ratio(batch, self.level)
        return torch.where((ratio >= self.low) & (ratio <= self.high), ratio, 0.0)


class OffPolicySequenceMask(Correction):
    """Drops answers with a negative advantage that the policy has moved away from.

    ``0 if A_t < 0 and (1/|y|) sum_t (rollout_log_probs_t - log_probs_t) > delta, else 1``.

    Source: DeepSeek-V3.2, arXiv 2512.02556, section 3.1, which does not give delta; TRL suggests
    0.5, slime 1e-4. The measure holds both the sampler's mismatch and the updates since.

    Args:
        delta: Largest mean drop in log-probability, in nats per token.
    """

    def __init__(self, delta: float = 0.5) -> None:
        if not delta >= 0:
            raise UserError(f"OffPolicySequenceMask: delta must be >= 0, got {delta}")
        self.delta = delta

    def weights(self, batch: PolicyBatch) -> Tensor:
        """Return 1, or 0 for the tokens that are dropped."""
        assert batch.rollout_log_probs is not None
        drop = masked_mean(batch.rollout_log_probs - batch.log_probs, batch.mask)
        dropped = (batch.advantages < 0) & (drop > self.delta)
        return torch.where(dropped, 0.0, torch.ones_like(batch.advantages))


class TopEntropyMask(Correction):
    """Only the tokens at which the policy is least certain keep their gradient.

    ``1 if entropy_t is among the ceil(share |y|) largest of its answer, else 0``; tokens that tie
    with the last of them are kept.

    Source: arXiv 2506.01939, section 5, which takes the quantile over a batch. Here it is taken
    over each answer, so that no cut into micro-batches changes it: certain answers keep as large a
    share as uncertain ones. Denominators count all tokens.

    Args:
        share: Share of each answer's tokens that is kept.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def __init__(self, share: float = 0.2) -> None:
        if not 0 < share < 1:
            raise UserError(
                f"TopEntropyMask: share must be above 0 and below 1, got {share}; remove it to "
                "train on every token"
            )
        self.share = share

    def weights(self, batch: PolicyBatch) -> Tensor:
        """Return 1 for the tokens with the highest entropy, 0 for the others."""
        assert batch.entropy is not None
        entropy = torch.where(batch.mask, batch.entropy.detach(), -torch.inf)
        lengths = batch.mask.sum(-1, keepdim=True)
        # Rounded first: 0.07 * 100 is a little more than 7 in binary.
        count = (lengths.double() * self.share).round(decimals=9).ceil().long().clamp(min=1)
        ordered = entropy.sort(-1, descending=True).values
        return (entropy >= ordered.gather(-1, count - 1)).to(batch.entropy.dtype)


def _level(correction: Correction, level: Level) -> Level:
    if level not in LEVELS:
        name = type(correction).__name__
        raise UserError(f"{name}: level '{level}' is unknown; {nearest(level, list(LEVELS))}")
    return level


@torch.no_grad()
def combined_weights(corrections: Sequence[Correction], batch: PolicyBatch) -> Tensor:
    """Return the product of all weights.

    Args:
        corrections: Any number.
        batch: Tensors of the micro-batch.

    Returns:
        (N, T), detached, 0 where masked.

    Raises:
        UserError: If one returns another shape.
        FloatingPointError: If one returns a number that is not finite, or is negative.
    """
    shape = batch.mask.shape
    product = torch.ones_like(batch.advantages)
    for correction in corrections:
        weights, name = correction.weights(batch).detach(), type(correction).__name__
        if weights.shape not in (shape, (shape[0], 1)):
            raise UserError(
                f"{name}.weights returned shape {tuple(weights.shape)}; it must be (N, T) = "
                f"{tuple(shape)} or (N, 1)"
            )
        weights = torch.where(batch.mask, weights, 0.0)
        if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
            raise FloatingPointError(f"{name}.weights returned a negative or infinite weight")
        product = product * weights
    return product * batch.mask


def correction_stats(weights: Tensor, mask: Tensor) -> Stats:
    """Return mean weight, its square, and the share of tokens that are left out.

    The square becomes the effective sample size ``(sum w)^2 / (n sum w^2)`` once all micro-batches
    and ranks are added up; see ``rlzoo.training.experience.finish``.

    Args:
        weights: (N, T).
        mask: (N, T) bool.
    """
    stats = Stats()
    stats.add_masked("correction/weight_mean", weights, mask)
    stats.add_masked("correction/weight_square", weights.double().square(), mask)
    stats.add_masked("correction/rejected", weights == 0, mask)
    return stats


def check_corrections(corrections: Sequence[Correction], algorithm: Algorithm) -> None:
    """Refuse corrections that count the same ratio twice or repeat each other.

    Raises:
        UserError: Naming them and the remedy.
    """
    names = [type(correction).__name__ for correction in corrections]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"model.corrections holds {repeated[0]} more than once; remove one")
    reweighting = [type(c).__name__ for c in corrections if c.reweights]
    if len(reweighting) > 1:
        raise UserError(
            f"model.corrections {' and '.join(reweighting)} both multiply by the ratio of trainer "
            "to sampler, which would count it twice; keep one"
        )
    if reweighting and "rollout_log_probs" in algorithm.needs:
        raise UserError(
            f"model.corrections {reweighting[0]} multiplies by the ratio of trainer to sampler, "
            f"and {type(algorithm).__name__} takes its own ratio to the sampler; remove one"
        )
