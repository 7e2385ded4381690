"""Answers compared as text."""

import pytest
from reward_samples import sample

from rlzoo.rewards import ExactMatch, FirstLineMatch


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
