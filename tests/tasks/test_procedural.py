"""Tasks that make their examples up: right answers, disjoint splits, the same rows everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlzoo.errors import UserError
from rlzoo.tasks import Addition, ChainSum, CountedCopies, DigitSorting, Example, ProceduralTask

ROOT = Path(__file__).parents[2]
TASKS = [
    DigitSorting(),
    Addition(),
    ChainSum(),
    ChainSum(min_terms=2, max_terms=4, digits=2),
    ChainSum(few_shot=4),
    CountedCopies(),
]
NAMES = ["sort", "add", "sum", "sum4", "shots", "copies"]
every_task = pytest.mark.parametrize("task", TASKS, ids=NAMES)


@every_task
def test_splits_share_no_prompt_whatever_the_seed(task):
    train = {e.prompt for seed in (0, 1) for e in task.examples("train", 400, seed)}
    held_out = {e.prompt for seed in (0, 2) for e in task.examples("eval", 400, seed)}
    assert len(train) > 20
    assert len(held_out) > 10
    assert not train & held_out


@every_task
def test_row_i_does_not_depend_on_the_size(task):
    assert list(task.examples("train", 50, 3))[:10] == list(task.examples("train", 10, 3))


@every_task
def test_seed_and_split_choose_the_rows(task):
    first = task.examples("train", 50, 0)
    assert first == task.examples("train", 50, 0)
    assert first != task.examples("train", 50, 1)


@every_task
def test_alphabet_covers_prompts_and_answers(task):
    used = "".join(e.prompt + e.target for e in task.examples("train", 300, 0))
    assert set(used) == set(task.alphabet)
    assert len(set(task.alphabet)) == len(task.alphabet)


@every_task
def test_a_size_is_needed(task):
    with pytest.raises(UserError, match=r"data\.eval_size=null.*set data\.eval_size"):
        task.examples("eval", None, 0)
    with pytest.raises(UserError, match=r"data\.train_size=0"):
        task.examples("train", 0, 0)


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_rows_are_the_same_in_every_process(hash_seed):
    """The expected rows are written down, so another version or platform must give them too."""
    script = (
        "from rlzoo.tasks import DigitSorting, ChainSum\n"
        "for split in ('train', 'eval'):\n"
        "    print(DigitSorting().examples(split, 2, 7)[1].prompt)\n"
        "    print(ChainSum(few_shot=2).examples(split, 2, 7)[1].prompt.splitlines())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == EXPECTED


EXPECTED = [
    "S0929133=",
    "['9 + 1 = 10', '5 - 4 = 1', '5 + 9 =']",
    "S42734531=",
    "['9 + 1 = 10', '5 - 4 = 1', '1 - 7 =']",
]


def test_a_task_with_too_few_prompts_says_so():
    class One(ProceduralTask):
        def draw(self, rng):
            return Example("one prompt", "x")

    One().examples("train", 1, 0)
    with pytest.raises(UserError, match=r"no prompt for the eval split.*too few different ones"):
        One().examples("eval", 1, 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DigitSorting(0, 3), "DigitSorting.min_digits=0"),
        (lambda: DigitSorting(5, 4), "must be at least min_digits=5"),
        (lambda: DigitSorting(1.5, 4), "DigitSorting.min_digits=1.5"),
        (lambda: CountedCopies(0, 3), "CountedCopies.min_copies=0"),
        (lambda: CountedCopies(5, 4), "must be at least min_copies=5"),
        (lambda: Addition(0), "Addition.digits=0"),
        (lambda: Addition(True), "Addition.digits=True"),
        (lambda: ChainSum(1), "ChainSum.min_terms=1"),
        (lambda: ChainSum(4, 3), "must be at least min_terms=4"),
        (lambda: ChainSum(few_shot=-1), "ChainSum.few_shot=-1"),
        (lambda: ChainSum(few_shot=33), "at most 32"),
    ],
)
def test_bad_numbers_are_refused_in_one_line(make, said):
    with pytest.raises(UserError, match=said) as info:
        make()
    assert "\n" not in str(info.value)


def test_importing_tasks_and_rewards_loads_nothing_heavy():
    heavy = [
        "torch",
        "lightning",
        "transformers",
        "numpy",
        "pebble",
        "datasets",
        "math_verify",
        "reasoning_gym",
    ]
    script = (
        "import sys, rlzoo.tasks, rlzoo.rewards\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"
