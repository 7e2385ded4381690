"""REINFORCE: the score function times the advantage, no ratio and no clip."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlzoo.algorithms.base import Algorithm, Surrogate
from rlzoo.ops import Aggregation
from rlzoo.types import PolicyBatch


class REINFORCE(Algorithm):
    """The plain policy gradient: log-probability of the whole answer times its advantage.

    ``J = 1/N sum_i sum_t A_it log_probs_it``,
    ``A_i = R_i - mean of its group``.

    Source: Williams 1992, doi 10.1007/BF00992696. Against PPO: no importance ratio, so it is
    unbiased only for the weights that sampled; the ratio is logged all the same. Elsewhere: verl's
    ``reinforce_plus_plus`` and ``rloo`` are advantages under PPO's clip unless the loss is changed.

    Use it with ``model.minibatches: 1``. With the quickstart's 4 updates per iteration three are
    stale and nothing corrects or stops them: it ends at 0.691 (seed 0), and at 0.771 with one
    update (``python -m benchmarks.quickstart --set model.minibatches=1``).
    """

    aggregation: ClassVar[Aggregation] = "sequence-sum"
    advantage: ClassVar[str] = "group-centered"

    def __init__(self) -> None:
        """Take nothing: there is no clip to set."""

    def clip(self, ratio: Tensor, batch: PolicyBatch) -> Surrogate:
        """Return ``A log_probs``; nothing is clipped."""
        return Surrogate(batch.advantages * batch.log_probs, torch.zeros_like(batch.mask))
