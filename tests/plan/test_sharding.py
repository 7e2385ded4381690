"""Shares of weights, gradients and states by strategy."""

import re

import pytest

from rlzoo.errors import UserError
from rlzoo.plan.job import precision_of
from rlzoo.plan.sharding import Sharding, sharding_of


@pytest.mark.parametrize(("stage", "figure"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_holds_what_its_paper_says(stage, figure):
    """arXiv 1910.02054, figure 1: 7.5 B parameters, 64 devices, K = 12, in GB."""
    kind = Sharding("deepspeed", 64, 8, stage=stage)
    precision = precision_of("bf16-mixed", "float32", 2, "deepspeed")
    widths = {3: precision.weight, 2: precision.gradient, 1: precision.state}
    assert sum(width * kind.share(7.5, 0, s) for s, width in widths.items()) == pytest.approx(
        figure, abs=0.05
    )


def test_experts_are_spread_first_and_partitioned_over_their_replicas():
    """64 experts' weights over 8 of 16 processes: an eighth each, which 2 replicas halve."""
    spread = Sharding("deepspeed", 16, 2, stage=2, ep_size=8)
    assert spread.share(100, 64, 3) == 100 + 8
    assert spread.share(100, 64, 2) == 100 / 16 + 8 / 2


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"devices": "auto"}, "trainer.devices auto depends on the machine"),
        ({"devices": 2, "strategy": "fsdp"}, "trainer.strategy FSDPStrategy: a plan knows"),
        ({"devices": 2, "strategy": "ddpp"}, "trainer.strategy ddpp is not one of Lightning's"),
    ],
)
def test_a_strategy_that_cannot_be_planned_is_refused(trainer, words):
    with pytest.raises(UserError, match=re.escape(words)):
        sharding_of(trainer, 0)
