"""Sums of several terms, and solved lines before them."""

import random
import re

from rlzoo.tasks import ChainSum


def test_chain_sum():
    task = ChainSum(min_terms=2, max_terms=3, digits=2)
    examples = task.examples("train", 300, 0)
    for example in examples:
        assert re.fullmatch(r"[1-9]\d( [+-] [1-9]\d){1,2} =", example.prompt)
        assert int(example.target) == eval(example.prompt.rstrip("="))
    assert any(example.target.startswith("-") for example in examples)
    assert {example.prompt.count(" ") for example in examples} == {3, 5}


def test_chain_sum_few_shot():
    """The solved lines are the same everywhere, right, and never asked."""
    task = ChainSum(few_shot=8)
    examples = [*task.examples("train", 300, 0), *task.examples("eval", 300, 1)]
    (head,) = {example.prompt.rpartition("\n")[0] for example in examples}
    lines = head.split("\n")
    assert len(set(lines)) == 8
    for line in lines:
        expression, result = line.split(" = ")
        assert eval(expression) == int(result)
        assert not any(e.prompt.endswith(f"\n{expression} =") for e in examples)
    question = examples[0].prompt.rpartition("\n")[2]
    assert eval(question.rstrip("=")) == int(examples[0].target)
    shown = task.demonstration(examples[0], 0.0, random.Random(0))
    assert shown == f" {examples[0].target}\n"
