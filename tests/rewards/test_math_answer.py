"""Answers compared as mathematics."""

import logging
import signal
import threading

import pytest
from reward_samples import sample

from rlzoo.errors import UserError
from rlzoo.rewards import MathAnswer, RewardRunner


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


def test_math_answer_has_a_timeout_by_default():
    assert MathAnswer().timeout == 5.0
