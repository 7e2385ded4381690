"""What each reward class says about given answers."""

import logging
import signal
import sys
import threading

import pytest
from reward_samples import sample

from rlzoo.errors import UserError
from rlzoo.rewards import (
    ExactMatch,
    FirstLineMatch,
    LengthPenalty,
    MathAnswer,
    OverlongPenalty,
    ReasoningGymReward,
    RegexFormat,
    RewardRunner,
    TagFormat,
)


def test_exact_match():
    assert ExactMatch().reward(sample(completion=" 4\n")) == 1.0
    assert ExactMatch(strip=False).reward(sample(completion=" 4\n")) == 0.0
    assert ExactMatch().reward(sample(completion="44")) == 0.0
    assert ExactMatch().reward(sample(terminated=False)) == 0.0
    assert ExactMatch(require_termination=False).reward(sample(terminated=False)) == 1.0


@pytest.mark.parametrize(
    ("completion", "terminated", "score"),
    [
        (" 4\n4 + 5 = 9", False, 1.0),
        (" 4", True, 1.0),
        (" 4", False, 0.0),
        (" 42\n", True, 0.0),
        ("\n4", True, 0.0),
    ],
)
def test_first_line_match(completion, terminated, score):
    answered = sample(completion=completion, terminated=terminated)
    assert FirstLineMatch().reward(answered) == score


@pytest.mark.parametrize(
    ("completion", "score"), [("42", 1.0), ("42 ", 0.0), ("x42", 0.0), ("-1", 1.0)]
)
def test_regex_format_matches_the_whole(completion, score):
    assert RegexFormat(r"-?\d+").reward(sample(completion=completion)) == score


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("<think>a</think>\n<answer>4</answer>", 1.0),
        ("<answer>4</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>4", 0.0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0.0),
        ("<think>a<answer>4</answer></think>", 0.0),
        ("</think>a<think><answer>4</answer>", 0.0),
    ],
)
def test_tag_format(completion, score):
    assert TagFormat().reward(sample(completion=completion)) == score


@pytest.mark.parametrize(
    ("tokens", "score"),
    [
        (1, 0.0),
        (16383, 0.0),
        (16384, 0.0),
        (16385, -0.000244140625),
        (18432, -0.5),
        (20480, -1.0),
        (20481, -1.0),
        (99999, -1.0),
    ],
)
def test_overlong_penalty_is_dapo_equation_13(tokens, score):
    assert OverlongPenalty(20480, 4096).reward(sample(num_tokens=tokens)) == score


def test_length_penalty():
    assert LengthPenalty(8).reward(sample(num_tokens=2)) == -0.25
    assert LengthPenalty(8).reward(sample(num_tokens=16)) == -2.0


# ---- MathAnswer ----


def math(completion, answer):
    return MathAnswer(timeout=None).reward(sample(completion=completion, answer=answer))


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("…so **73**.", "73", 1.0),
        ("\n73", "73", 1.0),
        ("73", "74", 0.0),
        ("I do not know", "73", 0.0),
        ("<think>7</think><answer>73</answer>", "73", 1.0),
        ("<answer>72</answer> or <answer>73</answer>", "73", 1.0),
        ("<answer>73", "73", 1.0),
        ("<answer>x + 1</answer>", "1+x", 1.0),
        ("so $\\boxed{\\frac{1}{2}}$", "0.5", 1.0),
        ("it is $\\frac{2}{4}$", "\\frac{1}{2}", 1.0),
        ("1,234", "1234", 1.0),
        ("$2x+4$", "2x+3", 0.0),
    ],
)
def test_rew_06_math_answer(completion, answer, score):
    """REW-06: bold, leading newline and tags do not hide the answer."""
    assert math(completion, answer) == score


def test_rew_05_gold_is_the_first_argument(monkeypatch):
    """REW-05."""
    import math_verify

    seen = []
    monkeypatch.setattr(
        math_verify, "verify", lambda *args, **kwargs: seen.append((args, kwargs)) or True
    )
    math("so 5", "73")
    ((gold, target), options) = seen[0]
    assert (gold[0], target[0]) == (73, 5)
    assert options == {"timeout_seconds": None}


def test_rew_04_math_answer_in_a_thread():
    """REW-04: same score as in the main thread, no signal error."""
    scores = []
    thread = threading.Thread(target=lambda: scores.append(math("so 73", "73")))
    thread.start()
    thread.join()
    assert scores == [1.0] == [math("so 73", "73")]


def test_rew_04_math_answer_from_a_thread_through_the_pool():
    """REW-04: with its default timeout, the late row abstains and the others are scored."""
    values = []
    slow = sample(1, "$10^{10^{10}}$", answer="3")

    def work():
        with RewardRunner([MathAnswer(timeout=0.7)], max_workers=2) as runner:
            values.extend(runner.evaluate([sample(0), slow, sample(2, "5")]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert values == [[1.0], [None], [0.0]]


def test_math_answer_leaves_a_pending_alarm_alone():
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.alarm(30)
        math("so 73", "73")
        assert signal.alarm(0) > 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_math_answer_does_not_warn_about_the_timeouts(caplog):
    import math_verify.grader
    import math_verify.parser

    math_verify.grader.TIMEOUT_WARNING_SHOWN = math_verify.parser.TIMEOUT_WARNING_SHOWN = False
    with caplog.at_level(logging.WARNING):
        math("73", "73")
    assert caplog.text == ""


def test_math_answer_a_reference_without_mathematics_is_an_error():
    with pytest.raises(UserError, match=r"'math_answer' failed on row 0: .*reference answer ''"):
        RewardRunner([MathAnswer(timeout=None)]).evaluate([sample(answer="")])


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


def test_math_answer_has_a_timeout_by_default():
    assert MathAnswer().timeout == 5.0


# ---- ReasoningGymReward ----


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
