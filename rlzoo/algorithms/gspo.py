"""GSPO: one length-normalized ratio per answer, and the whole answer is clipped."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rlzoo.algorithms.base import Algorithm
from rlzoo.ops import Aggregation, sequence_ratio
from rlzoo.types import PolicyBatch


class GSPO(Algorithm):
    """Group sequence policy optimization: ratio and clip belong to the answer, not the token.

    ``J = (1/N) sum_i min( s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i )``,
    ``s_i = exp( (1/|y_i|) sum_t (log_probs_it - old_log_probs_it) )``.
    An answer outside the band loses the gradient of all its tokens.

    Source: arXiv 2507.18071, eq. 5 and 7, section 5.1. The band presumes answers of thousands of
    tokens: the noise of s_i falls as 1/sqrt(|y_i|), so short answers want a wider one. Elsewhere:
    verl computes GSPO-token, equal for one advantage per answer; TRL's default aggregation
    weights answers by length.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"
    one_advantage_per_answer: ClassVar[bool] = True

    def __init__(self, clip_low: float = 3e-4, clip_high: float = 4e-4) -> None:
        super().__init__(clip_low, clip_high)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return s_i, (N, 1)."""
        return sequence_ratio(batch.log_probs, batch.old_log_probs, batch.mask)
