"""GSPO-token: GSPO's ratio in value, a token's gradient, so that tokens may differ in advantage."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rlzoo.algorithms.base import Algorithm
from rlzoo.ops import Aggregation, sequence_ratio, unit_ratio
from rlzoo.types import PolicyBatch


class GSPOToken(Algorithm):
    """GSPO for advantages that differ within an answer, as over several turns.

    ``J = 1/N sum_i 1/|y_i| sum_t min( s_it A_it, clip(s_it, 1 - clip_low, 1 + clip_high) A_it )``,
    ``s_it = sg[s_i] pi(y_it) / sg[pi(y_it)]``,
    ``s_i = exp( (1/|y_i|) sum_t (log_probs_it - old_log_probs_it) )``, sg = stop-gradient.

    Source: arXiv 2507.18071, eq. 13 and 14. Against GSPO: the same value and gradient with
    one advantage per answer; with several, each token is clipped by its own sign. Elsewhere: it is
    what verl calls ``gspo``; TRL has it as ``importance_sampling_level="sequence_token"``.

    Args:
        clip_low: Distance below 1 at which a negative advantage loses its gradient.
        clip_high: Distance above 1 at which a positive advantage loses its gradient.
    """

    aggregation: ClassVar[Aggregation] = "sequence-mean"

    def __init__(self, clip_low: float = 3e-4, clip_high: float = 4e-4) -> None:
        super().__init__(clip_low, clip_high)

    def ratio(self, batch: PolicyBatch) -> Tensor:
        """Return s_it, (N, T): the same number for all tokens of an answer."""
        whole = sequence_ratio(batch.log_probs, batch.old_log_probs, batch.mask)
        return whole.detach() * unit_ratio(batch.log_probs)
