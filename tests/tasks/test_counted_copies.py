"""A word, copied and counted."""

import re

from rlzoo.tasks import CountedCopies


def test_counted_copies():
    examples = CountedCopies(2, 48).examples("train", 300, 0)
    for example in examples:
        copies, word = re.fullmatch(r"C(\d+)([a-z]{3})=", example.prompt).groups()
        assert len(set(word)) == 3
        numbers = example.target.split(word)
        assert numbers == [*map(str, range(1, int(copies) + 1)), ""]
    assert max(len(example.target) for example in examples) > 220
