"""Schedules as numbers, and settings that refuse what they cannot honor."""

import math

import pytest

from rlzoo.errors import UserError
from rlzoo.training.settings import Evaluation, Schedule, ValueSettings


@pytest.mark.parametrize(
    ("schedule", "total", "factors"),
    [
        (Schedule(), math.inf, [1, 1, 1]),
        (Schedule(warmup_updates=3), math.inf, [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        (Schedule(decay="linear"), 4, [1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
        (Schedule(decay="linear", final_share=0.2), 4, [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (Schedule(warmup_updates=1, decay="linear"), 5, [1 / 2, 1, 3 / 4, 2 / 4, 1 / 4, 0]),
        (
            Schedule(decay="cosine"),
            4,
            [1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0],
        ),
        (Schedule(decay="cosine", final_share=0.5), 2, [1, 0.75, 0.5]),
        (Schedule(warmup_updates=9, decay="linear"), 4, [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_share_of_the_rate_by_update(schedule, total, factors):
    assert [schedule.factor(i, total) for i in range(len(factors))] == pytest.approx(factors)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule(warmup_updates=-1), "warmup_updates must be >= 0, got -1"),
        (lambda: Schedule(decay="linear", final_share=1.5), r"final_share must be in \[0, 1\]"),
        (lambda: Schedule(final_share=0.5), "final_share 0.5 has no effect"),
        (lambda: ValueSettings(coefficient=0), "value.coefficient must be > 0, got 0"),
        (lambda: ValueSettings(clip=0), "value.clip must be > 0"),
        (lambda: ValueSettings(clip=math.nan), "value.clip must be > 0"),
        (lambda: Evaluation(samples=0), "evaluation.samples must be >= 1, got 0"),
        (lambda: Evaluation(temperature=-1), "evaluation.temperature must be >= 0, got -1"),
    ],
)
def test_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
