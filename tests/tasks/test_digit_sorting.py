"""Digits in order."""

import re

from rlzoo.tasks import DigitSorting


def test_digit_sorting():
    for example in DigitSorting(3, 5).examples("train", 200, 0):
        digits = re.fullmatch(r"S(\d{3,5})=", example.prompt).group(1)
        assert example.target == "".join(sorted(digits))
    lengths = {len(example.target) for example in DigitSorting().examples("train", 100, 0)}
    assert lengths == {5, 6, 7, 8}
