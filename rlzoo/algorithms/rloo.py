"""RLOO: REINFORCE, each answer against the mean of the others."""

from __future__ import annotations

from typing import ClassVar

from rlzoo.algorithms.reinforce import REINFORCE


class RLOO(REINFORCE):
    """REINFORCE leave-one-out: the other answers to the prompt are the baseline.

    ``J = 1/N sum_i A_i sum_t log_probs_it``,
    ``A_i = R_i - mean_{j != i} R_j = G/(G - 1) (R_i - mean of its group)``.

    Source: arXiv 2402.14740, eq. 8. Against REINFORCE: only the advantage. The paper's KL (k1) is
    part of the reward: ``kl.placement=reward``. Elsewhere: TRL's RLOOTrainer clips the ratio of the
    whole answer, which is ``RLOOSequenceClip`` here; verl's ``rloo`` is this advantage under PPO's
    token clip.

    Use it with ``model.minibatches: 1``, as REINFORCE and for the same reason: the quickstart ends
    at 0.775 (seed 0) either way, but greedily at 0.906 with 4 updates per iteration and at 0.988
    with one.
    """

    advantage: ClassVar[str] = "leave-one-out"
