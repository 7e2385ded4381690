"""ADV-01 to ADV-08: estimators by hand. Those over two ranks are in tests/distributed."""

import pytest
import torch

from rlzoo.advantages import (
    ESTIMATORS,
    GAE,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    Outcome,
    default_advantage,
    generalized_advantages,
    rows_with_signal,
    token_rewards,
    whiten,
)
from rlzoo.algorithms import discover
from rlzoo.errors import UserError

GROUP = [GroupNormalized, GroupCentered, LeaveOneOut]
NAN = float("nan")


def outcome(scores, ids=None, valid=None, mask=None, **extra):
    count = len(scores)
    return Outcome(
        rewards=torch.tensor(scores),
        valid=torch.tensor([True] * count if valid is None else valid),
        group_ids=torch.tensor([0] * count if ids is None else ids),
        mask=torch.ones(count, 2, dtype=torch.bool) if mask is None else mask,
        **extra,
    )


def column(estimator, *args, **kwargs):
    advantages = estimator()(outcome(*args, **kwargs)).advantages
    assert torch.equal(advantages[:, 0], advantages[:, 1])
    return advantages[:, 0].tolist()


@pytest.mark.parametrize(
    ("estimator", "size"),
    [
        (GroupNormalized, 0.86588),  # 0.5 / (0.577350 + 1e-4), std over n - 1
        (GroupCentered, 0.5),
        (LeaveOneOut, 0.66667),  # 1 - 1/3
    ],
)
def test_adv_01_three_estimators_of_one_group(estimator, size):
    """ADV-01: rewards [1, 0, 0, 1]."""
    expected = [size, -size, -size, size]
    assert column(estimator, [1.0, 0.0, 0.0, 1.0]) == pytest.approx(expected, abs=5e-6)


def test_adv_02_a_single_odd_answer_stays_bounded():
    """ADV-02: [0.35] * 7 + [0]: against the others -0.35; mean .30625, std .1237437."""
    scores = [0.35] * 7 + [0.0]
    assert column(LeaveOneOut, scores)[-1] == pytest.approx(-0.35, abs=1e-6)
    assert column(LeaveOneOut, scores)[:-1] == pytest.approx([0.05] * 7, abs=1e-6)
    side = 0.30625 / (0.1237437 + 1e-4)
    assert column(GroupNormalized, scores)[-1] == pytest.approx(-side, abs=1e-5)


@pytest.mark.parametrize("estimator", GROUP)
@pytest.mark.parametrize(("score", "count"), [(0.35, 8), (0.1, 8), (2.3, 24), (0.7, 3)])
def test_adv_02_equal_rewards_give_exactly_zero(estimator, score, count):
    """ADV-02: in fp32 the mean of equal numbers is not that number; (r - mean) / eps explodes."""
    assert column(estimator, [score] * count) == [0.0] * count


@pytest.mark.parametrize("estimator", GROUP)
def test_adv_03_a_group_of_one_gives_zero(estimator):
    """ADV-03: not NaN, not the raw reward; configurations can refuse it by minimum_group."""
    assert column(estimator, [3.0]) == [0.0]
    assert column(estimator, [3.0, 1.0], ids=[0, 1]) == [0.0, 0.0]
    assert estimator.minimum_group == 2
    assert GAE.minimum_group == 1


@pytest.mark.parametrize("estimator", GROUP)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_adv_04_groups_go_by_id_and_not_by_place(estimator, order):
    """ADV-04: rows [1, 0, 10, 10] in groups a, a, b, b: centred [.5, -.5, 0, 0], permuted alike."""
    scores, ids = [1.0, 0.0, 10.0, 10.0], [4, 4, 9, 9]
    side = {GroupNormalized: 0.5 / (0.7071068 + 1e-4), GroupCentered: 0.5, LeaveOneOut: 1.0}
    expected = [side[estimator], -side[estimator], 0.0, 0.0]
    ours = column(estimator, [scores[i] for i in order], ids=[ids[i] for i in order])
    assert ours == pytest.approx([expected[i] for i in order], abs=1e-6)


def test_adv_04_one_text_twice_in_a_batch_is_two_groups():
    """ADV-04: groups are positions, so [1, 0] and [10, 10] never mix."""
    apart = column(GroupCentered, [1.0, 0.0, 10.0, 10.0], ids=[0, 0, 1, 1])
    mixed = column(GroupCentered, [1.0, 0.0, 10.0, 10.0], ids=[0, 0, 0, 0])
    assert apart == [0.5, -0.5, 0.0, 0.0]
    assert mixed == [-4.25, -5.25, 4.75, 4.75]


def test_adv_06_an_abstaining_row_leaves_the_statistics():
    """ADV-06: [1, None, 0, 0]: mean 1/3, std .5773503 over three rows."""
    for junk in (0.0, NAN, 1e9):
        ours = column(GroupNormalized, [1.0, junk, 0.0, 0.0], valid=[True, False, True, True])
        assert ours == pytest.approx([1.1545, 0.0, -0.57725, -0.57725], abs=5e-6)


@pytest.mark.parametrize("estimator", GROUP)
@pytest.mark.parametrize("valid", [[True, False, False], [False, False, False]])
def test_adv_06_one_valid_row_or_none_gives_zero(estimator, valid):
    assert column(estimator, [2.0, NAN, NAN], valid=valid) == [0.0, 0.0, 0.0]


def test_adv_07_the_scale_of_a_group_is_lost_by_the_standard_deviation_only():
    """ADV-07: (0, 1) and (0, 2) are both +-0.7071 when divided, +-0.5 and +-1 when not."""
    scores, ids = [0.0, 1.0, 0.0, 2.0], [0, 0, 1, 1]
    side = 0.7071068
    assert column(GroupNormalized, scores, ids=ids) == pytest.approx([-side, side] * 2, abs=2e-4)
    assert column(GroupCentered, scores, ids=ids) == [-0.5, 0.5, -1.0, 1.0]


@pytest.mark.parametrize("junk", [100.0, NAN])
def test_adv_08_gae_with_junk_on_padding(junk):
    """ADV-08: r [0, 1, 0], V [.5, .25, junk], gamma 1, lambda .95.

    delta = [.25 - .5, 1 - .25], A = [-.25 + .95 * .75, .75]; V of the padding would add to both.
    """
    mask = torch.tensor([[True, True, False]])
    values = torch.tensor([[0.5, 0.25, junk]])
    rewards = token_rewards(torch.tensor([1.0]), mask)
    ours = generalized_advantages(rewards, values, mask, gamma=1.0, lam=0.95)
    torch.testing.assert_close(ours.advantages, torch.tensor([[0.4625, 0.75, 0.0]]))
    torch.testing.assert_close(ours.returns, torch.tensor([[0.9625, 1.0, 0.0]]))


def test_adv_08_gae_steps_over_a_gap():
    """A token that the policy did not write passes value and advantage on as if it were absent."""
    rewards, values = torch.tensor([[0.5, 9.0, 1.0]]), torch.tensor([[0.2, 9.0, 0.4]])
    gap, none = torch.tensor([[True, False, True]]), torch.ones(1, 2).bool()
    ours = generalized_advantages(rewards, values, gap, gamma=0.9, lam=0.8)
    dense = generalized_advantages(rewards[:, [0, 2]], values[:, [0, 2]], none, gamma=0.9, lam=0.8)
    assert torch.equal(ours.advantages[:, [0, 2]], dense.advantages)
    assert torch.equal(ours.returns[:, [0, 2]], dense.returns)
    assert ours.advantages[0, 1] == ours.returns[0, 1] == 0
    # delta_0 = .5 + .9 * .4 - .2 = .66, A_2 = .6, A_0 = .66 + .72 * .6
    assert ours.advantages[0, 0].item() == pytest.approx(1.092)


def test_adv_08_whitening_is_over_valid_tokens():
    """ADV-08: [1, 3, padding] becomes -+0.7071 (unbiased std 1.4142)."""
    mask = torch.tensor([[True, True, False]])
    ours = whiten(torch.tensor([[1.0, 3.0, NAN]]), mask)
    torch.testing.assert_close(ours, torch.tensor([[-0.7071068, 0.7071068, 0.0]]))
    single = whiten(torch.tensor([[5.0, NAN]]), torch.tensor([[True, False]]))
    assert single.tolist() == [[5.0, 0.0]]
    assert whiten(torch.tensor([[NAN]]), torch.tensor([[False]])).tolist() == [[0.0]]


def test_gae_leaves_abstaining_rows_out_and_whitens_after_the_targets():
    """GAE(1, 1) is reward to go minus value; the row that abstained touches no statistic."""
    mask = torch.ones(3, 2, dtype=torch.bool)
    values = torch.tensor([[0.5, 0.0], [0.0, 0.5], [NAN, NAN]])
    made = outcome([1.0, 0.0, NAN], valid=[True, True, False], mask=mask, values=values)
    raw = GAE(whitening=False)(made)
    torch.testing.assert_close(raw.advantages[:2], torch.tensor([[0.5, 1.0], [0.0, -0.5]]))
    torch.testing.assert_close(raw.returns[:2], torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    white = GAE()(made)
    assert torch.equal(white.returns, raw.returns)
    kept = white.advantages[:2]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.var().item() == pytest.approx(1.0, abs=1e-6)
    assert not white.advantages[2].any()


def test_gae_refuses_a_batch_without_a_critic_and_bad_discounts():
    with pytest.raises(ValueError, match="carries no values"):
        GAE()(outcome([1.0]))
    for key in ("gamma", "lam"):
        with pytest.raises(UserError, match=f"GAE: {key} must be between 0 and 1, got 1.1"):
            GAE(**{key: 1.1})


@pytest.mark.parametrize("estimator", GROUP)
def test_masked_tokens_get_no_advantage(estimator):
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    advantages = estimator()(outcome([1.0, 0.0, 0.0], mask=mask)).advantages
    assert (advantages != 0).tolist() == mask.tolist()


def test_estimators_are_found_by_their_short_names():
    assert {name: cls.name for name, cls in ESTIMATORS.items()} == {n: n for n in ESTIMATORS}
    for cls in discover().values():
        assert default_advantage(cls.advantage).name == cls.advantage
    with pytest.raises(UserError, match="'leave-on-out' is unknown; did you mean 'leave-one-out'"):
        default_advantage("leave-on-out")


@pytest.mark.parametrize(("size", "share"), [(2, 0.702), (4, 0.449), (8, 0.201)])
def test_log_03_share_of_groups_without_signal(size, share):
    """LOG-03: success rate p = .1819 gives p^G + (1 - p)^G, counted over 20000 drawn groups."""
    success = 0.1819
    assert success**size + (1 - success) ** size == pytest.approx(share, abs=1e-3)
    rng = torch.Generator().manual_seed(0)
    scores = (torch.rand(20000 * size, generator=rng) < success).float()
    ids = torch.arange(20000).repeat_interleave(size)
    mask = torch.ones(len(ids), 1, dtype=torch.bool)
    _, flat, total = rows_with_signal(Outcome(scores, mask[:, 0], ids, mask))
    assert total == 20000
    assert flat / total == pytest.approx(share, abs=0.01)
