"""Penalties for length."""

import pytest
from reward_samples import sample

from rlzoo.rewards import LengthPenalty, OverlongPenalty


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
