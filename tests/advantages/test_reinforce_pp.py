"""REINFORCE++ and its baseline against worked values."""

import itertools

import pytest
import torch
from outcomes import TABLE, close, first, float64, outcome

from rlzoo.advantages import Groups, Outcome, ReinforcePP, ReinforcePPBaseline, whiten
from rlzoo.errors import UserError
from rlzoo.ops import kl_penalty

NAN = float("nan")


def groups(scores, ids=None, lengths=None):
    ids = torch.zeros(len(scores)).long() if ids is None else torch.tensor(ids)
    lengths = None if lengths is None else torch.tensor(lengths)
    return Groups(float64(scores), ids, torch.ones(len(scores), dtype=torch.bool), lengths)


def test_reinforce_pp_is_the_worked_one():
    table = TABLE["reinforce_pp"]
    mask = float64(table["mask"]).bool()
    old, ref = float64(table["logp_old"]), float64(table["logp_ref"])
    cost = table["beta"] * kl_penalty(old, ref, "k1").masked_fill(~mask, NAN)
    made = Outcome(float64(table["seq_rewards"]), mask[:, 0], torch.zeros(2).long(), mask, cost)
    ours = ReinforcePP(gamma=table["gamma"])(made).advantages
    close(ours, table["adv"])
    close(whiten(float64(table["returns"]), mask), table["adv"])
    flipped = Outcome(made.rewards, made.valid, made.group_ids, mask, -cost)
    assert (ReinforcePP()(flipped).advantages - ours).abs().max() > 1e-4


def test_reinforce_pp_discounts_per_token():
    """Score 1 on the last of 2 tokens, 0 on another: to go [.5, 1 | 0], mean .5, var .25."""
    ours = ReinforcePP(gamma=0.5)(outcome([1.0, 0.0], lengths=[2, 1])).advantages
    close(ours, [[0.0, 1.0], [-1.0, 0.0]], 1e-7)
    with pytest.raises(UserError, match="ReinforcePP: gamma must be between 0 and 1, got 2"):
        ReinforcePP(2)


def test_reinforce_pp_baseline_is_the_worked_one():
    table = TABLE["reinforce_pp_baseline"]
    scores = list(itertools.chain(*table["groups"]))
    made = outcome(scores, ids=[0, 0, 1, 1], lengths=table["lengths"])
    close(first(ReinforcePPBaseline(), made), table["adv_per_sequence"])
    even = first(ReinforcePPBaseline(), outcome(scores, ids=[0, 0, 1, 1]))
    assert (even - float64(table["adv_per_sequence"])).abs().max() > 0.1  # tokens do weigh


def test_reinforce_pp_baseline_leaves_a_group_without_signal_at_zero():
    """Long answers that fail make the token mean negative, and the flat group still gets 0."""
    made = outcome([1.0, 0.0, 1.0, 1.0], ids=[0, 0, 1, 1], lengths=[1, 5, 2, 2])
    assert first(ReinforcePPBaseline(), made)[2:].tolist() == [0.0, 0.0]
