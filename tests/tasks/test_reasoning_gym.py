"""Questions of reasoning-gym."""

import sys

import pytest

from rlzoo.errors import UserError
from rlzoo.rewards import ReasoningGymReward, Sample
from rlzoo.tasks import ReasoningGym


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"rlzoo-lightning\[gym\]"):
        ReasoningGym("chain_sum")


@pytest.fixture
def gym():
    pytest.importorskip("reasoning_gym")


CONFIG = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}


@pytest.mark.usefixtures("gym")
def test_questions_are_reproducible_and_the_splits_disjoint():
    task = ReasoningGym("chain_sum", CONFIG)
    train, held_out = task.examples("train", 200, 0), task.examples("eval", 200, 0)
    assert train == ReasoningGym("chain_sum", CONFIG).examples("train", 200, 0)
    assert train != task.examples("train", 200, 1)
    assert train[:20] == task.examples("train", 20, 0)
    everything = [*train, *task.examples("train", 200, 5)]
    assert not {e.prompt for e in everything} & {e.prompt for e in held_out}
    for example in train[:20]:
        expression = example.prompt.rpartition(":")[2].rstrip("= ")
        assert eval(expression) == int(example.target)


@pytest.mark.usefixtures("gym")
def test_questions_go_with_the_reward():
    reward = ReasoningGymReward()
    for name in ("chain_sum", "gcd", "count_primes"):
        example = ReasoningGym(name).examples("train", 1, 0)[0]

        def scored(completion, example=example):
            answered = Sample(
                0, example.prompt, completion, example.target, True, 1, example.columns
            )
            return reward.reward(answered)

        assert scored(f" {example.target}\n") == 1.0
        assert scored(f"{example.target}9") == 0.0


@pytest.mark.usefixtures("gym")
def test_a_size_is_needed():
    with pytest.raises(UserError, match=r"data\.train_size=null: ReasoningGym 'gcd'"):
        ReasoningGym("gcd").examples("train", None, 0)


@pytest.mark.usefixtures("gym")
def test_too_few_questions_end_in_an_error(monkeypatch):
    class Same:
        def __getitem__(self, index):
            return {"question": "one prompt", "answer": None, "metadata": {}}

    task = ReasoningGym("gcd")
    monkeypatch.setattr(task, "_create", lambda **_: Same())
    assert [e.target for e in task.examples("eval", 3, 0)] == ["", "", ""]
    with pytest.raises(UserError, match="no new question for the train split"):
        task.examples("train", 1, 0)


@pytest.mark.usefixtures("gym")
@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("chain_sums", None, "ReasoningGym.name='chain_sums': did you mean 'chain_sum'"),
        ("chain_sum", {"terms": 2}, "does not suit 'chain_sum' .TypeError.*'terms'"),
        ("chain_sum", {"min_terms": -1}, "does not suit 'chain_sum' .AssertionError"),
        ("chain_sum", {"seed": 3}, "config.seed=3: is not an option here"),
        ("composite", {"datasets": [{"name": "gcd"}]}, "does not suit 'composite'"),
    ],
)
def test_bad_names_and_options_are_one_line(name, config, said):
    with pytest.raises(UserError, match=said) as info:
        ReasoningGym(name, config)
    assert "\n" not in str(info.value)
