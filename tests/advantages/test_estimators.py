"""What every estimator owes: order, abstentions, silent groups, signs, precision, names."""

import pytest
import torch
from outcomes import outcome

from rlzoo.advantages import (
    ESTIMATORS,
    GAE,
    GroupCentered,
    GroupNormalized,
    Outcome,
    PassAtKAdvantage,
    default_advantage,
)
from rlzoo.algorithms import discover
from rlzoo.errors import UserError

NAN = float("nan")
BY_GROUP = {
    **{n: c for n, c in ESTIMATORS.items() if c.by_group and n != "pass@k"},
    "pass@k": lambda: PassAtKAdvantage(k=2),
}
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


def test_estimators_are_found_by_their_short_names():
    assert {name: cls.name for name, cls in ESTIMATORS.items()} == {n: n for n in ESTIMATORS}
    for cls in discover().values():
        assert default_advantage(cls.advantage).name == cls.advantage
    with pytest.raises(UserError, match="'leave-on-out' is unknown; did you mean 'leave-one-out'"):
        default_advantage("leave-on-out")


def test_kl_06_every_estimator_sees_the_cost():
    """KL-06: GAE takes it token by token, a group estimator from the answer's reward."""
    mask, cost = torch.tensor([[True, True], [True, False]]), torch.tensor([[0.1, 0.3], [0.2, NAN]])
    outcome = Outcome(
        rewards=torch.tensor([1.0, 1.0]),
        valid=torch.tensor([True, True]),
        group_ids=torch.tensor([0, 0]),
        mask=mask,
        penalty=cost,
        values=torch.zeros(2, 2),
    )
    returns = GAE(whitening=False)(outcome).returns
    torch.testing.assert_close(returns, torch.tensor([[0.6, 0.7], [0.8, 0.0]]))
    # rewards 0.6 and 0.8: mean 0.7, std 0.141421
    advantages = GroupNormalized()(outcome).advantages
    side = 0.1 / (0.1414214 + 1e-4)
    torch.testing.assert_close(advantages, torch.tensor([[-side, -side], [side, 0.0]]))
