"""Answers of a given form."""

import pytest
from reward_samples import sample

from rlzoo.rewards import RegexFormat, TagFormat


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
