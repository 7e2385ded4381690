"""RLOO as TRL trains it: the clip acts on the ratio of the whole answer."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation, product_ratio
from rlzoo.types import PolicyBatch


class RLOOSequenceClip(Algorithm):
    """Leave-one-out advantage under PPO's clip of the product of an answer's token ratios.

    ``J = 1/N sum_i min( W_i A_i, clip(W_i, 1 - clip_low, 1 + clip_high) A_i )``,
    ``W_i = exp( sum_t (log_probs_it - old_log_probs_it) )``.

    Source: TRL's RLOOTrainer; the advantage is RLOO's, arXiv 2402.14740, eq. 8. Against RLOO: old
    answers can be reused. W_i is not normalized by length, so long answers leave the band soon
    and lose the gradient of all their tokens; GSPO's ratio is its |y_i|-th root.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "sequence-sum"
    advantage: ClassVar[str] = "leave-one-out"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        super().__init__(clip_low, clip_high)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return W_i, (N, 1)."""
        return product_ratio(batch.log_probs, batch.old_log_probs, batch.mask)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return the answer's clipped term, an equal share of it on each token."""
        objective, clipped = super().clip(ratio, batch)
        return Surrogate(objective / batch.mask.sum(-1, keepdim=True).clamp(min=1), clipped)
