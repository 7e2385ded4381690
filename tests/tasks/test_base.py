"""What tasks inherit."""

import random

import pytest

from rlzoo.errors import UserError
from rlzoo.tasks import Example, Task


class Letters(Task):
    @property
    def alphabet(self):
        return "ab"

    def examples(self, split, size, seed):
        return []


def test_demonstration_noise():
    """Each character is replaced with the given probability by one of the alphabet."""
    example = Example("", "c" * 10_000)
    noisy = Letters().demonstration(example, 0.13, random.Random(0))
    assert set(noisy) == {"a", "b", "c"}
    assert 0.12 < 1 - noisy.count("c") / 10_000 < 0.14
    assert Letters().demonstration(example, 0.0, random.Random(0)) == example.target
    assert "c" not in Letters().demonstration(example, 1.0, random.Random(0))
    assert noisy == Letters().demonstration(example, 0.13, random.Random(0))
    with pytest.raises(UserError, match=r"noise=1\.5"):
        Letters().demonstration(example, 1.5, random.Random(0))
