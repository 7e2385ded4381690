"""Plain functions as rewards: which arguments they get, and what is refused."""

import pytest
import reward_samples as zoo
from reward_samples import sample

from rlzoo.errors import UserError
from rlzoo.rewards import FunctionReward, RewardRunner


def test_function_gets_the_arguments_it_names():
    reward = FunctionReward("reward_samples.closeness", weight=0.5)
    assert reward.name == "closeness"
    assert reward.weight == 0.5
    near, far = sample(0, "6", columns={"tolerance": 2}), sample(1, "7", columns={"tolerance": 2})
    assert RewardRunner([reward]).evaluate([near, far]) == [[1.0], [0.0]]


def test_function_with_completions_gets_the_batch():
    reward = FunctionReward(zoo.longest_wins)
    assert reward.batched
    samples = [
        sample(0, "aa", "x", columns={"level": "x"}),
        sample(1, "aa", "x", columns={"level": "y"}),
        sample(2, "a", "x", columns={"level": "x"}),
    ]
    assert RewardRunner([reward]).evaluate(samples) == [[1.0], [0.0], [0.0]]
    assert reward.reward(samples[2]) == 1.0


def test_function_with_kwargs_gets_everything():
    assert FunctionReward(zoo.greedy).reward(sample(columns={"a": 1, "b": 2})) == 7 + 2


def test_function_default_is_used_where_there_is_no_column():
    reward = FunctionReward(zoo.optional)
    assert reward.reward(sample()) == 1.0
    assert reward.reward(sample(columns={"level": "hard"})) == 0.5


def test_fields_win_over_columns_of_the_same_name():
    taken = sample(completion="1", columns={"completion": "9"})
    assert FunctionReward(zoo.first_digit).reward(taken) == 1


@pytest.mark.parametrize("on_error", ["raise", "abstain"])
def test_function_asks_for_what_is_not_there(on_error):
    reward = FunctionReward(zoo.closeness, on_error=on_error)
    with pytest.raises(
        UserError, match=r"asks for 'tolerance'.*present: answer, completion, level,"
    ):
        RewardRunner([reward]).evaluate([sample(columns={"level": 1})])


def test_batch_function_asks_for_a_column_that_only_some_rows_have():
    reward = FunctionReward(zoo.longest_wins)
    with pytest.raises(UserError, match="asks for 'level'"):
        RewardRunner([reward]).evaluate([sample(columns={"level": 1}), sample()])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("closeness", "write module.function"),
        ("no_such_module.f", "cannot import 'no_such_module'"),
        ("reward_samples.closenes", "has no 'closenes'; did you mean 'closeness'"),
        ("reward_samples.os", "is not callable"),
        (zoo.positional, "'completion' cannot be passed by name"),
        (3, "is not callable"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_at_once(function, said):
    with pytest.raises(UserError, match=said) as info:
        FunctionReward(function)
    assert "\n" not in str(info.value)
