"""The seam: an algorithm is a ratio and a clip, and nothing else."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError
from rlzoo.ops import Aggregation, out_of_band, token_ratio
from rlzoo.types import PolicyBatch

Unit = Literal["row", "group", "minibatch"]


class Surrogate(NamedTuple):
    """What an algorithm maximizes, and where its clip acted.

    Attributes:
        objective: (N, T) per-token surrogate, maximized.
        clipped: (N, T) bool, the tokens whose gradient the clip removed or changed.
    """

    objective: Tensor
    clipped: Tensor


class Algorithm(Recorded, ABC):
    """An objective: importance ratio and clip. Everything else is written once, elsewhere.

    The defaults are PPO's: ``r_t = exp(log_probs_t - old_log_probs_t)`` per token and
    ``min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``; most objectives override one method.

    Args:
        clip_low: How far below 1 the ratio may fall before a negative advantage loses its gradient.
        clip_high: How far above 1 it may rise before a positive advantage loses its gradient.

    Attributes:
        aggregation: How token terms become one number, by default.
        advantage: Short name of the default advantage estimator.
        needs: Optional fields of the batch that it reads, such as ``{"entropy"}``.
        unit: The smallest part of a step that it can be computed on: any ``row`` alone, whole
            prompt ``group``s, or this rank's whole ``minibatch``, for one that looks at all tokens.
        one_advantage_per_answer: Whether an advantage per token would be meaningless in it.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"
    advantage: ClassVar[str] = "group"
    needs: ClassVar[frozenset[str]] = frozenset()
    unit: ClassVar[Unit] = "row"
    one_advantage_per_answer: ClassVar[bool] = False

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        self.clip_low = self.non_negative("clip_low", clip_low)
        self.clip_high = self.non_negative("clip_high", clip_high)
        if clip_low > 1:
            raise UserError(
                f"{type(self).__name__}: clip_low {clip_low} is above 1, but a ratio is never "
                "negative; it is a distance below 1, so use a value in [0, 1]"
            )

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return the importance ratio, (N, T) per token or (N, 1) per answer."""
        return token_ratio(batch.log_probs, batch.old_log_probs)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return the clipped surrogate of a ratio.

        Args:
            ratio: What ``ratio`` returned.
            batch: The tensors of the step.

        Returns:
            Objective and clip mask, both (N, T).
        """
        low, high, advantages = self.clip_low, self.clip_high, batch.advantages
        objective = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
        return Surrogate(objective, out_of_band(ratio, advantages, low, high))

    def non_negative(self, name: str, value: float) -> float:
        """Return the value, or refuse it.

        Raises:
            UserError: If it is below 0 or NaN.
        """
        if not value >= 0:
            raise UserError(f"{type(self).__name__}: {name} must be >= 0, got {value}")
        return value

    def positive(self, name: str, value: float) -> float:
        """Return the value, or refuse it with a UserError if it is 0, below 0 or NaN."""
        if not value > 0:
            raise UserError(f"{type(self).__name__}: {name} must be > 0, got {value}")
        return value
