"""ADV-01 to ADV-07: the estimators of a group, by hand and by their worked values."""

import math

import pytest
import torch
from outcomes import TABLE, close, first, float32_outcome, float64, outcome

from rlzoo.advantages import (
    GAE,
    OPO,
    BatchNormalized,
    GroupCentered,
    GroupNormalized,
    Groups,
    LeaveOneOut,
    MaxRL,
    Outcome,
)
from rlzoo.errors import UserError

GROUP = [GroupNormalized, GroupCentered, LeaveOneOut]
NAN = float("nan")


def column(estimator, *args, **kwargs):
    advantages = estimator()(float32_outcome(*args, **kwargs)).advantages
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
    """ADV-04: rows [1, 0, 10, 10] in groups a, a, b, b: centered [.5, -.5, 0, 0], permuted alike."""
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


@pytest.mark.parametrize("estimator", GROUP)
def test_masked_tokens_get_no_advantage(estimator):
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    advantages = estimator()(float32_outcome([1.0, 0.0, 0.0], mask=mask)).advantages
    assert (advantages != 0).tolist() == mask.tolist()


def groups(scores, ids=None, lengths=None):
    ids = torch.zeros(len(scores)).long() if ids is None else torch.tensor(ids)
    lengths = None if lengths is None else torch.tensor(lengths)
    return Groups(float64(scores), ids, torch.ones(len(scores), dtype=torch.bool), lengths)


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


def test_batch_normalized_divides_by_one_number():
    """Centred [.5, -.5, 1, -1], sum of squares 2.5 over n - 1 = 3: std .9128709."""
    ours = first(BatchNormalized(), outcome([1.0, 0.0, 2.0, 0.0], ids=[0, 0, 1, 1]))
    std = math.sqrt(2.5 / 3) + 1e-4
    close(ours, [0.5 / std, -0.5 / std, 1 / std, -1 / std])
