"""Scores of reasoning-gym."""

import pytest
from reward_samples import sample

from rlzoo.errors import UserError
from rlzoo.rewards import ReasoningGymReward


@pytest.mark.parametrize(
    ("options", "completion", "score"),
    [
        ({}, "3 \n", 1.0),
        ({}, "13", 0.0),
        ({"partial": True}, "13", 0.5),
        ({"answer_tag": True}, "9 <answer> 3</answer>", 1.0),
        ({"answer_tag": True}, "3", 0.0),
    ],
)
def test_reasoning_gym_score(options, completion, score):
    pytest.importorskip("reasoning_gym")
    entry = {"question": "1 + 2 =", "answer": "3", "metadata": {}}
    columns = {"dataset": "chain_sum", "config": {"min_digits": 1}, "entry": entry}
    assert ReasoningGymReward(**options).reward(sample(0, completion, columns=columns)) == score


def test_reasoning_gym_score_an_unreadable_answer_is_wrong():
    """prime_factorization raises on words."""
    pytest.importorskip("reasoning_gym")
    entry = {"question": "6", "answer": "2 \u00d7 3", "metadata": {"number": 6, "factors": [2, 3]}}
    columns = {"dataset": "prime_factorization", "config": {}, "entry": entry}
    reward = ReasoningGymReward()
    assert reward.reward(sample(0, "2 \u00d7 3", columns=columns)) == 1.0
    assert reward.reward(sample(0, "two times three", columns=columns)) == 0.0


def test_reasoning_gym_score_wants_its_own_task():
    with pytest.raises(UserError, match="needs column 'dataset', which only the ReasoningGym task"):
        ReasoningGymReward().reward(sample())
