"""KL-Cov: no clip; the tokens whose likelihood and advantage agree most are held back."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate, Unit
from rlzoo.ops import Aggregation, covariance, largest_share
from rlzoo.types import PolicyBatch


class KLCov(Algorithm):
    """Importance sampling, with a penalty on the few tokens that make entropy collapse.

    ``J = (1 / sum_i |y_i|) sum_i sum_t r_it A_it - k_it penalty |d_it|``,
    ``d_it = log_probs_it - old_log_probs_it``, ``r_it = exp(d_it)``,
    ``k_it = 1`` for the ``max(1, int(share * tokens))`` tokens of largest positive
    ``cov_it = (A_it - mean A) (log_probs_it - mean log_probs)``.

    Source: arXiv 2505.22617, section 4 (share 2e-3 for 7B, 2e-4 for 32B). Means and ranks over the
    tokens of the optimizer step. Clipped marks the tokens that the penalty moved. Elsewhere: verl
    takes them over a micro-batch, and its settings file has a penalty of 0.1.

    Args:
        share: Share of the tokens to hold back.
        penalty: Weight of the absolute log-ratio.
    """

    aggregation: ClassVar[Aggregation] = "token-mean"
    unit: ClassVar[Unit] = "minibatch"

    def __init__(self, share: float = 2e-4, penalty: float = 1.0) -> None:
        self.share = self.non_negative("share", share)
        self.penalty = self.non_negative("penalty", penalty)

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``r A`` less the penalty, and where it moved a token."""
        cov = covariance(batch.advantages, batch.log_probs, batch.mask)
        chosen = largest_share(cov, batch.mask & (cov > 0), batch.mask, self.share)
        drift = batch.log_probs - batch.old_log_probs
        held = torch.where(chosen, self.penalty * drift.abs(), 0.0)
        return Surrogate(ratio * batch.advantages - held, chosen & (drift != 0))
