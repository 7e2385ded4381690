"""Sums of two numbers."""

import re

from rlzoo.tasks import Addition


def test_addition():
    for example in Addition(digits=2).examples("train", 200, 0):
        left, right = re.fullmatch(r"([1-9]\d)\+([1-9]\d)=", example.prompt).groups()
        assert int(example.target) == int(left) + int(right)
