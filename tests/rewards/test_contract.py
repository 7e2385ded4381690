"""What a reward may return, what happens when it fails, and how scores are combined."""

import logging
import pickle
import sys
from fractions import Fraction

import numpy as np
import pytest
import reward_samples as zoo
import torch
from reward_samples import sample

from rlzoo.errors import UserError
from rlzoo.rewards import (
    ExactMatch,
    FirstLineMatch,
    FunctionReward,
    LengthPenalty,
    MathAnswer,
    OverlongPenalty,
    ReasoningGymReward,
    RegexFormat,
    Reward,
    RewardRunner,
    TagFormat,
    combine,
)


@pytest.mark.parametrize(
    ("values", "got"), [([1.0], 1), ([1.0, 2.0, 3.0], 3), (np.ones(3), 3), ([], 0)]
)
def test_rew_01_wrong_length_names_function_and_counts(values, got):
    """REW-01."""
    runner = RewardRunner([zoo.ReturnsAll(values, name="my_reward")])
    with pytest.raises(UserError, match=f"'my_reward': expected 4 scores, got {got}"):
        runner.evaluate([sample(row) for row in range(4)])


@pytest.mark.parametrize("values", [1.0, "1111", None, {1: 2}])
def test_rew_01_not_a_list(values):
    """REW-01."""
    runner = RewardRunner([zoo.ReturnsAll(values)])
    with pytest.raises(UserError, match=r"'returns_all' returned a .*; return a list of 4 scores"):
        runner.evaluate([sample(row) for row in range(4)])


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.75), 0.75),
        (torch.tensor(True), 1.0),
        (Fraction(1, 2), 0.5),
        (None, None),
    ],
)
def test_rew_08_scalars_become_floats(value, score):
    """REW-08."""
    got = RewardRunner([zoo.Returns(value)]).evaluate([sample(7)])[0][0]
    assert got == score
    assert type(got) is type(score)


@pytest.mark.parametrize("values", [np.array([0.5, 1.0]), torch.tensor([0.5, 1.0]), (0.5, 1)])
def test_rew_08_a_batch_may_be_an_array(values):
    """REW-08."""
    assert RewardRunner([zoo.ReturnsAll(values)]).evaluate([sample(), sample()]) == [[0.5], [1.0]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float32("inf"), "inf"),
        (torch.tensor(float("nan")), "nan"),
        (10**400, "inf"),
        ("1.0", "a str"),
        ([1.0], "a list"),
        (np.ones(1), "a ndarray"),
        (1j, "a complex"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "abstain"])
def test_rew_08_what_is_no_finite_number_names_the_row(value, said, on_error):
    """REW-08: a breach of the contract is an error, whatever on_error says."""
    runner = RewardRunner([zoo.Returns(value, on_error=on_error)])
    with pytest.raises(UserError, match=f"reward 'returns' returned {said} for row 7"):
        runner.evaluate([sample(6), sample(7)])


def test_an_exception_names_reward_and_row_and_is_chained():
    with pytest.raises(
        UserError, match="'picky' failed on row 5: RuntimeError: no such number"
    ) as info:
        RewardRunner([zoo.Picky()]).evaluate([sample(4), sample(5, "bad")])
    assert isinstance(info.value.__cause__, RuntimeError)
    assert "\n" not in str(info.value)


def test_an_exception_abstains_if_asked_to(caplog):
    runner = RewardRunner([zoo.Picky(on_error="abstain"), ExactMatch()])
    with caplog.at_level(logging.WARNING):
        assert runner.evaluate([sample(4), sample(5, "bad")]) == [[1.0, 1.0], [None, 0.0]]
    assert "'picky' abstains on row 5" in caplog.text


def test_columns_follow_the_rewards_and_rows_the_samples():
    first = FunctionReward("reward_samples.first_digit", name="first")
    runner = RewardRunner([first, zoo.ReturnsAll([0.5, None, 0.25])])
    samples = [sample(row, text) for row, text in enumerate(("3x", "1x", "2x"))]
    assert runner.evaluate(samples) == [[3.0, 0.5], [1.0, None], [2.0, 0.25]]
    assert runner.names == ["first", "returns_all"]
    assert runner.evaluate([]) == []


def test_prepare_is_called_once_before_the_first_row():
    calls = []

    class Prepared(Reward):
        def prepare(self):
            calls.append("prepare")

        def reward(self, sample):
            calls.append(sample.row)
            return 0.0

    runner = RewardRunner([Prepared()])
    runner.evaluate([sample(0), sample(1)])
    runner.evaluate([sample(2)])
    assert calls == ["prepare", 0, 1, 2]


def test_combine_sums_what_did_not_abstain():
    values = [[1.0, 2.0], [None, 2.0], [1.0, None], [None, None]]
    assert combine(values, [1.0, 0.5]) == [2.0, 1.0, 1.0, None]
    assert RewardRunner([ExactMatch(weight=2), TagFormat()]).combine([[1.0, 1.0]]) == [3.0]


def test_combine_a_reward_of_weight_0_does_not_make_a_row_count():
    assert combine([[None, 5.0], [1.0, 5.0]], [1.0, 0.0]) == [None, 1.0]


def test_runner_survives_pickling_with_workers_running():
    with RewardRunner([zoo.Sleeper(timeout=20)], max_workers=1) as runner:
        runner.evaluate([sample(1, "0")])
        with pickle.loads(pickle.dumps(runner)) as copy:
            assert copy.evaluate([sample(2, "0")]) == [[2.0]]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RewardRunner([]), "the list is empty"),
        (lambda: RewardRunner([ExactMatch(), ExactMatch()]), "2 are named 'exact_match'"),
        (lambda: RewardRunner([ExactMatch(weight=0)]), "every weight is 0"),
        (lambda: RewardRunner([ExactMatch()], max_workers=0), "max_workers=0"),
        (lambda: RewardRunner([ExactMatch()], max_seconds=0), "max_seconds=0"),
        (lambda: ExactMatch(weight=float("nan")), "exact_match.weight=nan"),
        (lambda: ExactMatch(weight="1"), "exact_match.weight='1'"),
        (lambda: ExactMatch(timeout=0), "exact_match.timeout=0: must be above 0"),
        (lambda: ExactMatch(on_error="abstian"), "did you mean 'abstain'"),
        (lambda: ExactMatch(name="a/b"), "reward name 'a/b'"),
        (lambda: RegexFormat("(a"), r"regex_format.pattern='\(a': not a regular expression"),
        (lambda: TagFormat(["<think>"]), "without <>"),
        (lambda: TagFormat([]), "one or more"),
        (lambda: TagFormat(["a", "a"]), "distinct"),
        (lambda: LengthPenalty(0), "length_penalty.limit=0"),
        (lambda: OverlongPenalty(0, 1), "overlong_penalty.max_tokens=0"),
        (lambda: OverlongPenalty(10, 0), "overlong_penalty.buffer=0"),
        (lambda: OverlongPenalty(10, 11), "at most max_tokens=10"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, said):
    with pytest.raises(UserError, match=said) as info:
        make()
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("reward", "score"),
    [
        (ExactMatch(), 0.0),
        (FirstLineMatch(), 0.0),
        (RegexFormat(".+"), 0.0),
        (TagFormat(), 0.0),
        (LengthPenalty(10), -0.1),
        (OverlongPenalty(10, 4), 0.0),
        (MathAnswer(timeout=None), 0.0),
        (FunctionReward("reward_samples.length"), 0.0),
    ],
)
def test_eos_05_an_empty_completion_is_scored(reward, score):
    """EOS-05: the model stopped at once."""
    empty = sample(0, "", num_tokens=1)
    assert RewardRunner([reward]).evaluate([empty]) == [[score]]


def test_eos_05_reasoning_gym():
    """EOS-05."""
    pytest.importorskip("reasoning_gym")
    columns = {
        "dataset": "chain_sum",
        "config": {},
        "entry": {"question": "2+2", "answer": "4", "metadata": {}},
    }
    runner = RewardRunner([ReasoningGymReward()])
    assert runner.evaluate([sample(0, "", columns=columns)]) == [[0.0]]


def math(completion, answer):
    return MathAnswer(timeout=None).reward(sample(completion=completion, answer=answer))


@pytest.mark.parametrize(
    ("reward", "module", "extra"),
    [
        (MathAnswer(timeout=None), "math_verify", "math"),
        (ReasoningGymReward(), "reasoning_gym", "gym"),
    ],
)
def test_a_missing_library_names_the_extra(monkeypatch, reward, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"rlzoo-lightning\[{extra}\]"):
        RewardRunner([reward]).evaluate([sample()])
