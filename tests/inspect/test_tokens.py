"""Numbers on answers small enough to compute by hand."""

import math

import pytest
import torch

from rlzoo.advantages import GroupCentered, GroupNormalized
from rlzoo.algorithms import GRPO, GSPO, discover
from rlzoo.errors import UserError
from rlzoo.inspect.frozen import Frozen
from rlzoo.inspect.gradients import Gradient, cosines, signal_to_noise
from rlzoo.inspect.tokens import Chosen, effective_share, find, look, ratio_summary, summary
from rlzoo.training.experience import Rewards
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams

pytestmark = pytest.mark.timeout(30)


def frozen(ratios, scores, group_size=2):
    """Answers whose token ratios are given; rows may differ in length."""
    width = max(map(len, ratios))
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in ratios])
    moved = torch.tensor(
        [[math.log(r) for r in row] + [0.0] * (width - len(row)) for row in ratios]
    )
    old = torch.where(mask, -1.5, 0.0)
    groups = len(ratios) // group_size
    rollouts = Rollouts(
        prompts=Prompts(tuple(Prompt((1,), "q") for _ in range(groups)), tuple(range(groups))),
        params=SamplingParams(max_new_tokens=width),
        group_ids=torch.arange(groups).repeat_interleave(group_size),
        token_ids=mask.long(),
        mask=mask,
        terminated=torch.ones(len(ratios), dtype=torch.bool),
        log_probs=old,
        completions=("",) * len(ratios),
    )
    rewards = Rewards(
        [[s] for s in scores],
        torch.tensor(scores),
        torch.ones(len(scores), dtype=torch.bool),
        (1.0,),
    )
    return Frozen(rollouts, rewards, mask, old, old + moved, torch.where(mask, 0.3, 0.0), 64)


def seen(algorithm, answers, advantage=None):
    item = Chosen("x", algorithm, advantage or GroupNormalized(), algorithm.aggregation)
    view = look(item, answers)
    return view, summary(view)


def test_kept_share_of_a_token_clip_by_hand():
    """Good answer: ratios 1.1 kept, 1.3 over the band, 0.5 kept. Bad: 0.7 under, 1.3 kept."""
    view, found = seen(GRPO(), frozen([[1.1, 1.3, 0.5], [0.7, 1.3]], [1.0, 0.0]))
    assert found["kept_tokens"] == pytest.approx(3 / 5)
    assert found["kept_answers"] == 1.0
    expected = torch.tensor([[1.1, 0, 0.5], [0, 1.3, 0]], dtype=torch.float64)
    torch.testing.assert_close(view.weight, expected, atol=1e-6, rtol=0)
    assert (found["weight_min"], found["weight_max"]) == (0, pytest.approx(1.3, abs=1e-6))
    assert found["weight_median"] == pytest.approx(0.5, abs=1e-6)
    free = [[1 - r * math.exp(-1.5) for r in row] for row in ([1.1, 1.3, 0.5], [0.7, 1.3])]
    lost = free[0][1] / 3 + free[1][0] / 2  # the mean of each answer, equal advantages
    assert found["kept_pull"] == pytest.approx(
        1 - lost / (sum(free[0]) / 3 + sum(free[1]) / 2), rel=1e-5
    )
    square = 1.1**2 + 0.5**2 + 1.3**2
    assert found["weight_ess"] == pytest.approx((1.1 + 0.5 + 1.3) ** 2 / (5 * square), rel=1e-5)


def test_kept_share_of_an_answer_clip_by_hand():
    """s = sqrt(1.2 * 1.2) is over 1.1 for the good answer; the bad one's 1 is in the band."""
    view, found = seen(GSPO(0.1, 0.1), frozen([[1.2, 1.2], [2.0, 0.5, 1.0]], [1.0, 0.0]))
    assert (found["kept_tokens"], found["kept_answers"]) == (pytest.approx(3 / 5), 0.5)
    torch.testing.assert_close(
        view.weight[1], torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_groups_without_signal_do_not_count_as_lost():
    answers = frozen([[1.0], [1.0], [9.0], [9.0]], [1.0, 0.0, 1.0, 1.0])
    view, found = seen(GRPO(), answers)
    assert found["kept_tokens"] == 1.0
    assert view.signal.tolist() == [[True], [True], [False], [False]]
    with pytest.raises(UserError, match="no token has an advantage"):
        seen(GRPO(), frozen([[1.0], [1.0]], [1.0, 1.0]))


def test_weight_does_not_depend_on_the_mean_or_the_advantage():
    answers = frozen([[1.1, 0.9], [1.05]], [3.0, 0.0])
    first, _ = seen(GRPO(), answers)
    second = look(Chosen("x", GRPO(), GroupCentered(), "sequence-sum"), answers)
    torch.testing.assert_close(first.weight, second.weight)


@pytest.mark.parametrize("name", sorted(discover()))
def test_every_objective_is_seen_on_policy(name):
    algorithm = find(name)()
    answers = frozen([[1.0, 1.0], [1.0], [1.0], [1.0, 1.0]], [1.0, 0.0, 2.0, 0.0])
    view, found = seen(algorithm, answers)
    assert math.isfinite(view.loss)
    if name not in ("GEPO", "REAL", "GTPO", "LUSPO"):  # whose g is not 1 on-policy
        assert (found["kept_tokens"], found["kept_answers"]) == (1.0, 1.0)
        assert found["weight_min"] == found["weight_max"] == pytest.approx(1.0, abs=1e-9)


def test_effective_share():
    assert effective_share(torch.full((7,), 0.3)) == pytest.approx(1.0)
    assert effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_share(torch.tensor([1.0, 3.0])) == pytest.approx(16 / 20)
    assert effective_share(torch.zeros(3)) == 0


def test_ratios_by_token_and_answer():
    found = ratio_summary(frozen([[2.0, 2.0], [1.0]], [1.0, 0.0]))
    assert found["token_ess"] == pytest.approx(25 / (3 * 9), rel=1e-5)
    assert found["answer_ess"] == pytest.approx(25 / (2 * 17), rel=1e-5)
    assert found["answer_mean_ess"] == pytest.approx(9 / (2 * 5), rel=1e-5)
    assert found["answer_log_ratio_max"] == pytest.approx(2 * math.log(2), rel=1e-5)
    assert found["answer_log_ratio_std"] == pytest.approx(math.log(2), rel=1e-5)


def test_signal_to_noise_by_hand():
    """Groups (1, 0), (3, 0), (2, 3): m = (2, 1), v = (2 + 2 + 4) / 2 = 4, |m|^2 / (4/3) = 3.75."""
    groups = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    gradient = Gradient([groups.sum(0)], float(groups.square().sum()), 3)
    assert gradient.norm == pytest.approx(math.sqrt(45))
    assert gradient.signal_to_noise == pytest.approx(3.75)


def test_signal_to_noise_at_the_edges():
    assert math.isnan(signal_to_noise(1.0, 1.0, 1))
    assert math.isnan(signal_to_noise(0.0, 0.0, 4))
    assert signal_to_noise(9.0, 3.0, 3) == math.inf
    assert signal_to_noise(0.0, 2.0, 2) == 0


def test_noise_alone_gives_about_one():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(400, 8, 20, generator=generator)
    values = [
        signal_to_noise(float(d.sum(0).square().sum()), float(d.square().sum()), 8) for d in draws
    ]
    assert sum(values) / 400 == pytest.approx(1.0, abs=0.05)


def test_cosines_of_gradients():
    def gradient(*parts):
        return Gradient([torch.tensor(part) for part in parts])

    found = {
        "a": gradient([1.0, 0.0], [0.0]),
        "b": gradient([1.0, 0.0], [1.0]),
        "c": gradient([-2.0, 0.0], [0.0]),
        "zero": gradient([0.0, 0.0], [0.0]),
    }
    matrix = cosines(found)
    assert matrix[0][:3] == [1.0, pytest.approx(math.sqrt(0.5)), -1.0]
    assert all(math.isnan(row[3]) for row in matrix)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GSPOO", "no objective 'GSPOO'; did you mean 'GSPO'?"),
        ("nowhere.GRPO", "no objective 'nowhere.GRPO': No module named 'nowhere'"),
        ("inspected_objectives.Gone", "has no attribute 'Gone'"),
        ("inspected_objectives.length_and_first", "must derive from Algorithm"),
    ],
)
def test_unknown_objectives_are_refused(name, words):
    with pytest.raises(UserError) as error:
        find(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
