"""Estimators beyond the three of a group: worked values, brute force, and what all of them owe."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from rlzoo.advantages import (
    ESTIMATORS,
    GDPO,
    OPO,
    BatchNormalized,
    GroupCentered,
    GroupNormalized,
    Groups,
    MaxRL,
    Outcome,
    PassAtKAdvantage,
    ReinforcePP,
    ReinforcePPBaseline,
    whiten,
)
from rlzoo.errors import UserError
from rlzoo.ops import kl_penalty

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "objectives.json").read_text())
TABLE = GOLDEN["advantages"]
NAN = float("nan")
BY_GROUP = {
    **{n: c for n, c in ESTIMATORS.items() if c.by_group and n != "pass@k"},
    "pass@k": lambda: PassAtKAdvantage(k=2),
}


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def groups(scores, ids=None, lengths=None):
    ids = torch.zeros(len(scores)).long() if ids is None else torch.tensor(ids)
    lengths = None if lengths is None else torch.tensor(lengths)
    return Groups(float64(scores), ids, torch.ones(len(scores), dtype=torch.bool), lengths)


def outcome(scores, ids=None, valid=None, lengths=None, components=None, weights=None, **extra):
    count = len(scores)
    lengths = torch.tensor([2] * count if lengths is None else lengths)
    scores = float64(scores)
    components = scores[:, None] if components is None else float64(components)
    return Outcome(
        rewards=scores,
        valid=torch.tensor([True] * count if valid is None else valid),
        group_ids=torch.tensor([0] * count if ids is None else ids),
        mask=torch.arange(max(1, int(lengths.max()))) < lengths[:, None],
        components=components,
        weights=float64([1.0] * components.shape[1] if weights is None else weights),
        **extra,
    )


def first(estimator, made):
    """The advantage of each answer, which all its tokens share."""
    advantages = estimator(made).advantages
    for row, mask in zip(advantages, made.mask, strict=True):
        assert len(set(row[mask].tolist())) <= 1
        assert not row[~mask].any()
    return advantages[:, 0]


def close(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, float64(theirs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rewards", ["binary8", "all_equal4", "real3"])
def test_maxrl_is_the_worked_one(rewards):
    table = TABLE[rewards]
    close(MaxRL().of_groups(groups(table["rewards"])), table["maxrl"])
    close(first(MaxRL(), outcome(table["rewards"])), table["maxrl"])


def test_maxrl_of_failures_is_zero_and_a_negative_mean_is_refused():
    assert first(MaxRL(), outcome([0.0] * 4)).tolist() == [0.0] * 4
    assert first(MaxRL(), outcome([-1.0] * 4)).tolist() == [0.0] * 4
    for scores in ([0.5, -1.0], [1.0, -1.0]):
        with pytest.raises(UserError, match=r"MaxRL divides by the mean reward .* one is -?0"):
            MaxRL()(outcome(scores))


def test_opo_is_the_worked_one():
    table = TABLE["opo_real3"]
    lengths = [int(n) for n in table["lengths"]]
    found = groups(table["rewards"], lengths=lengths)
    assert found.length_weighted_mean.item() == pytest.approx(table["baseline"], abs=1e-15)
    close(OPO().of_groups(found), table["adv"])
    close(first(OPO(), outcome(table["rewards"], lengths=lengths)), table["adv"])
    flat = first(OPO(), outcome(table["rewards"], lengths=[3, 3, 3]))
    close(flat, TABLE["real3"]["dr_grpo"])  # equal lengths: the plain mean


def test_opo_weighs_by_lengths_as_sampled_where_cut_answers_are_masked():
    made = outcome([1.0, 0.0], lengths=[2, 0])
    given = Outcome(**{**vars(made), "lengths": torch.tensor([2, 6])})
    assert OPO()(made).advantages[0, 0] == 0  # a masked answer would not count: baseline 1
    close(OPO()(given).advantages[:1, 0], [0.75])  # baseline (2 * 1 + 6 * 0) / 8


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


def test_gdpo_is_the_worked_one():
    table = TABLE["gdpo_trl"]
    components, ids = float64(table["rewards_per_component"]), torch.tensor(table["group_id"])
    valid = torch.ones(4, dtype=torch.bool)
    weights = float64(table["weights"])
    close(GDPO().of_components(components, weights, ids, valid), table["adv"])
    for k in range(2):  # each by itself is the normalised column, whitened
        alone = GDPO().of_components(components, torch.eye(2).double()[k], ids, valid)
        column = float64(table["normalised"])[:, k]
        close(alone, (column / (column.std() + 1e-4)).tolist())
    doubled = GDPO().of_components(components, float64([2.0, 1.0]), ids, valid)
    assert (doubled - float64(table["adv"])).abs().max() > 0.1


def test_gdpo_keeps_a_signal_that_the_sum_has_lost():
    """Weights (1, 2), rewards (2, 0), (0, 1), (1, .5): every sum is 2, and GDPO still ranks them."""
    components, weights = [[2.0, 0.0], [0.0, 1.0], [1.0, 0.5]], [1.0, 2.0]
    made = outcome([2.0] * 3, components=components, weights=weights)
    assert not GroupNormalized()(made).advantages.any()
    assert GroupNormalized().rows_with_signal(made)[1:] == (1, 1)
    assert first(GDPO(), made).sign().tolist() == [-1, 1, 0]
    signal, silent, total = GDPO().rows_with_signal(made)
    assert (signal.tolist(), silent, total) == ([True] * 3, 0, 1)


def test_gdpo_counts_neither_abstentions_nor_rewards_of_weight_zero():
    """The second reward abstains on row 2: rows 0, 1 are -+ .7071, row 2 gets the first's alone."""
    components = [[1.0, 0.0], [1.0, 1.0], [1.0, NAN]]
    values = first(GDPO(), outcome([1.0, 2.0, 1.0], components=components))
    side = 0.5 / (math.sqrt(0.5) + 1e-4)
    close(values, [-side / (side + 1e-4), side / (side + 1e-4), 0.0])
    weightless = outcome([1.0] * 3, components=components, weights=[1.0, 0.0])
    assert not GDPO()(weightless).advantages.any()
    assert GDPO().rows_with_signal(weightless)[1:] == (1, 1)
    with pytest.raises(ValueError, match="no components"):
        GDPO()(Outcome(**{**vars(weightless), "components": None}))


def test_batch_normalised_divides_by_one_number():
    """Centred [.5, -.5, 1, -1], sum of squares 2.5 over n - 1 = 3: std .9128709."""
    ours = first(BatchNormalized(), outcome([1.0, 0.0, 2.0, 0.0], ids=[0, 0, 1, 1]))
    std = math.sqrt(2.5 / 3) + 1e-4
    close(ours, [0.5 / std, -0.5 / std, 1 / std, -1 / std])


def subsets(rewards, k):
    """Mean over the sets of k with the answer, of the set's normalised reward."""
    sets = list(itertools.combinations(range(len(rewards)), k))
    won = [max(rewards[i] for i in chosen) for chosen in sets]
    mean = sum(won) / len(won)
    std = math.sqrt(sum((x - mean) ** 2 for x in won) / len(won))
    found = []
    for i in range(len(rewards)):
        mine = [x for x, chosen in zip(won, sets, strict=True) if i in chosen]
        found.append((sum(mine) / len(mine) - mean) / std if std > 0 else 0.0)
    return found


@pytest.mark.parametrize("right", range(8))
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_pass_at_k_is_the_average_over_all_sets(k, right):
    """Every set of k of 7 answers written out."""
    rewards = [1.0] * right + [0.0] * (7 - right)
    ours = first(PassAtKAdvantage(k), outcome(rewards))
    close(ours, subsets(rewards, k))
    assert ours.sum().item() == pytest.approx(0.0, abs=1e-12)


def test_pass_at_k_gives_nothing_where_every_set_is_right_or_there_is_one_set():
    assert not PassAtKAdvantage(3)(outcome([1.0, 1.0, 0.0, 0.0])).advantages.any()
    abstained = outcome([1.0, 0.0, 0.0, NAN], valid=[True, True, True, False])
    assert PassAtKAdvantage(2)(abstained).advantages.any()
    assert not PassAtKAdvantage(3)(abstained).advantages.any()
    assert PassAtKAdvantage(4).minimum_group == 5


def test_pass_at_k_refuses_other_rewards_than_right_or_wrong():
    with pytest.raises(UserError, match=r"a reward is 0.3; it reads only 0 and 1"):
        PassAtKAdvantage(1)(outcome([1.0, 0.3, 0.0]))
    with pytest.raises(UserError, match="k must be >= 1, got 0"):
        PassAtKAdvantage(0)


ALL = [*BY_GROUP, "reinforce++"]
MIXED = {
    "scores": [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    "ids": [3, 3, 3, 7, 7, 7, 1, 1, 1],
    "valid": [True] * 5 + [False] + [True] * 3,
    "lengths": [1, 3, 2, 4, 1, 2, 3, 3, 5],
}


def build(name):
    return {**ESTIMATORS, **BY_GROUP}[name]()


def mixed(order=range(9), junk=1.0):
    """Three groups, one row abstained; two rewards of which the second abstains there too."""
    cut = {key: [values[i] for i in order] for key, values in MIXED.items()}
    cut["scores"] = [s if v else junk for s, v in zip(cut["scores"], cut["valid"], strict=True)]
    components = [
        [s, 0.1 * n if v else NAN]
        for s, n, v in zip(cut["scores"], cut["lengths"], cut["valid"], strict=True)
    ]
    return outcome(**cut, components=components, weights=[1.0, 0.5])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("order", [(8, 7, 6, 5, 4, 3, 2, 1, 0), (3, 0, 8, 5, 1, 6, 4, 7, 2)])
def test_the_order_of_rows_changes_nothing(name, order):
    straight, other = build(name)(mixed()).advantages, build(name)(mixed(order)).advantages
    assert straight.any()
    torch.testing.assert_close(other, straight[list(order)], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("junk", [NAN, 1e9])
def test_what_an_abstaining_row_holds_changes_not_a_bit(name, junk):
    ours, clean = build(name)(mixed(junk=junk)).advantages, build(name)(mixed()).advantages
    assert torch.equal(ours, clean)
    assert not ours[5].any()


@pytest.mark.parametrize("name", ALL)
def test_without_the_abstaining_row_it_is_the_same_batch(name):
    kept = [i for i in range(9) if i != 5]
    without, whole = build(name)(mixed(kept)).advantages, build(name)(mixed()).advantages
    torch.testing.assert_close(without, whole[kept], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("score", "count"), [(1.0, 8), (0.0, 3), (0.1, 8), (2.3, 24)])
def test_a_batch_of_equal_rewards_gives_exactly_zero(name, score, count):
    if name == "pass@k" and score not in (0.0, 1.0):
        return
    lengths = [1 + i % 4 for i in range(count)]
    assert not build(name)(outcome([score] * count, lengths=lengths)).advantages.any()


@pytest.mark.parametrize("name", BY_GROUP)
def test_a_constant_group_beside_another_gives_exactly_zero(name):
    scores, ids = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1]
    ours = build(name)(outcome(scores, ids, lengths=[1, 4, 2, 2, 1, 3])).advantages
    assert ours[0].any()
    assert not ours[3:].any()
    assert build(name).minimum_group >= 2


@pytest.mark.parametrize("name", ALL)
def test_more_reward_never_earns_less(name):
    """A sign turned around anywhere fails here."""
    ours = build(name)(outcome([1.0, 0.0, 0.0, 0.0])).advantages[:, 0]
    assert ours[0] > 0 > ours[1]


def test_advantages_come_in_the_precision_of_the_scores_and_never_in_half():
    for name in ALL:
        made = mixed()
        for dtype, expected in (
            (torch.float64, torch.float64),
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.float32),
        ):
            given = Outcome(**{**vars(made), "rewards": made.rewards.to(dtype)})
            assert build(name)(given).advantages.dtype == expected


def test_short_names_are_all_there():
    assert list(ESTIMATORS) == [
        "group",
        "group-centered",
        "batch",
        "leave-one-out",
        "gae",
        "reinforce++",
        "reinforce++-baseline",
        "maxrl",
        "opo",
        "gdpo",
        "pass@k",
    ]
    assert {n for n, c in ESTIMATORS.items() if c.per_token} == {"gae", "reinforce++"}
    assert GroupCentered.takes_penalty
    assert {n for n, c in ESTIMATORS.items() if not c.takes_penalty} == {"maxrl", "gdpo", "pass@k"}
