"""Rules of collapse on histories made by hand: each fires, and stays silent in a near miss."""

import math

import pytest

from rlzoo.callbacks.collapse import CollapseMonitor
from rlzoo.callbacks.collapse_rules import (
    CollapseRule,
    EntropyRange,
    GradNormSpike,
    KLAbove,
    NonFinite,
    RewardDrop,
    default_rules,
)
from rlzoo.errors import UserError


def of(name, *values):
    return [{} if value is None else {name: value} for value in values]


def rewards(*values):
    return of("reward/mean", *values)


NAN, INF = math.nan, math.inf
DROP = RewardDrop(absolute=0.2, relative=0.5, window=2)
ENTROPY = EntropyRange(floor=0.1, ceiling=2.0, rise=0.5, window=2)
SPIKE = GradNormSpike(factor=10.0, window=4)
NORM = "optim/grad_norm"
CASES = {
    "fell by half": (DROP, rewards(0, 1, 1, 0.5, 0.5), "fell from 1 to 0.5, by 0.5 (bound 0.5)"),
    "fell by less than half": (DROP, rewards(0, 1, 1, 0.51, 0.51), None),
    "best of a single iteration": (DROP, rewards(0, 1, 0, 0), "fell from 0.5 to 0, by 0.5"),
    "best of a partial window": (DROP, rewards(1), None),
    "small reward fell to nothing": (DROP, rewards(0.1, 0.1, 0, 0), None),
    "small reward fell far": (DROP, rewards(0.1, 0.1, -0.2, -0.2), "(bound 0.2)"),
    "negative best": (DROP, rewards(-1, -1, -1.5, -1.5), "(bound 0.5)"),
    "negative best, near": (DROP, rewards(-1, -1, -1.4, -1.4), None),
    "rose": (DROP, rewards(0, 0, 1, 1), None),
    "recovered": (DROP, rewards(1, 1, 0, 0, 0.8, 0.8), None),
    "no reward last": (DROP, rewards(1, 1, 0, 0, None), None),
    "nan is left out": (DROP, rewards(1, NAN, 1, 0, 0), "fell from 1 to 0"),
    "absolute alone": (RewardDrop(0.25, 0.0, 1), rewards(10, 9.75), "by 0.25 (bound 0.25)"),
    "absolute alone, near": (RewardDrop(0.25, 0.0, 1), rewards(10, 9.76), None),
    "certain": (ENTROPY, of("policy/entropy", 2, 2, 1, 0.1, 0.2), "fell from 2 to 0.15"),
    "nearly certain": (ENTROPY, of("policy/entropy", 2, 2, 1, 0.2, 0.2), None),
    "random": (ENTROPY, of("policy/entropy", 1, 1, 2.1, 2.1), "rose from 1 to 2.1 nats"),
    "nearly random": (ENTROPY, of("policy/entropy", 1, 1, 2, 2), None),
    "from almost nothing": (ENTROPY, of("policy/entropy", 0.1, 0.1, 0.6, 0.6), None),
    "from almost nothing, far": (ENTROPY, of("policy/entropy", 0.1, 0.1, 0.7, 0.7), "rose from"),
    "two windows are needed": (ENTROPY, of("policy/entropy", 2, 2, 0), None),
    "log-prob stands in": (
        ENTROPY,
        of("policy/log_prob", -2, -2, -0.1, -0.1),
        "-policy/log_prob fell from 2 to 0.1 nats (floor 0.2)",
    ),
    "entropy goes first": (
        ENTROPY,
        [{"policy/log_prob": -x, "policy/entropy": 1.0} for x in (2, 2, 0.1, 0.1)],
        None,
    ),
    "no ceiling": (
        EntropyRange(ceiling=INF, window=1),
        of("policy/entropy", 0.1, 50.0),
        None,
    ),
    "far from the reference": (
        KLAbove("reference", 0.5),
        of("policy/kl_ref", 0.1, 0.51),
        "policy/kl_ref is 0.51 nats per token (bound 0.5)",
    ),
    "at the bound": (KLAbove("reference", 0.5), of("policy/kl_ref", 9.0, 0.5), None),
    "infinitely far": (KLAbove("reference", 0.5), of("policy/kl_ref", INF), "is inf"),
    "the other KL": (KLAbove("reference", 0.5), of("policy/kl_old", 9.0), None),
    "a step too far": (KLAbove("old", 0.5), of("policy/kl_old", 9.0), "policy/kl_old is 9"),
    "a spike": (SPIKE, of(NORM, 1, 2, 3, 21), "is 21, 10.5 times its median 2 over 3"),
    "a small spike": (SPIKE, of(NORM, 1, 2, 3, 20), None),
    "a spike too early": (SPIKE, of(NORM, 1, 100), None),
    "an old median is forgotten": (SPIKE, of(NORM, 1, 1, 1, 1, 9, 9, 9, 9, 89), None),
    "no gradient does not count": (SPIKE, of(NORM, 0, 0, 0, 1), None),
    "a spike without a norm": (SPIKE, of(NORM, 1, 1, 1, 50, None), None),
    "nan loss": (NonFinite(), of("policy/loss", 1, NAN), "policy/loss is nan"),
    "inf log-prob": (NonFinite(), of("policy/log_prob", -INF), "policy/log_prob is -inf"),
    "nan long ago": (NonFinite(), of("policy/loss", NAN, 1), None),
    "all skipped": (NonFinite(), of("optim/skipped", 0, 1), "optim/skipped is 1 over 1"),
    "half skipped": (NonFinite(), of("optim/skipped", 0.5), None),
    "skipped over a window": (NonFinite(0.5, 3), of("optim/skipped", 1, 0, 1), "is 0.667 over 3"),
    "skipped once in a window": (NonFinite(0.5, 3), of("optim/skipped", 1, 1, 0, 0), None),
}


@pytest.mark.parametrize("case", CASES)
def test_rules(case):
    rule, history, expected = CASES[case]
    found = rule.check(history)
    if expected is None:
        assert found is None
    else:
        assert expected in found
    assert rule.check(history) == found  # nothing is kept


def test_a_rule_reads_only_what_it_watches():
    for rule, history, _ in CASES.values():
        cut = [{k: v for k, v in row.items() if k in rule.watches} for row in history]
        assert rule.check(cut) == rule.check(history)


def test_default_rules_are_silent_on_an_ordinary_run():
    rows = [
        {
            "reward/mean": 0.1 + 0.8 * i / 100 + 0.1 * (-1) ** i,
            "policy/log_prob": -2 + 1.9 * i / 100,
            "policy/kl_old": 0.01,
            "policy/kl_ref": 0.02 * i,
            "optim/grad_norm": 1.0 if i % 7 else 9.0,
            "optim/skipped": 0.0,
            "policy/loss": 0.0,
        }
        for i in range(100)
    ]
    for rule in default_rules():
        assert [rule.check(rows[: i + 1]) for i in range(100)] == [None] * 100
        assert rule.check([{}]) is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RewardDrop(absolute=0), "RewardDrop: absolute must be > 0, got 0"),
        (lambda: RewardDrop(relative=-1), "RewardDrop: relative must be >= 0, got -1"),
        (lambda: RewardDrop(window=0), "RewardDrop: window must be > 0, got 0"),
        (lambda: EntropyRange(floor=1.0), "EntropyRange: floor must be in [0, 1), got 1.0"),
        (lambda: EntropyRange(ceiling=1.0), "EntropyRange: ceiling must be > 1"),
        (lambda: EntropyRange(rise=NAN), "EntropyRange: rise must be >= 0, got nan"),
        (lambda: EntropyRange(window=0), "EntropyRange: window must be > 0"),
        (lambda: KLAbove("old", NAN), "KLAbove: limit must be > 0, got nan"),
        (lambda: GradNormSpike(factor=1.0), "GradNormSpike: factor must be > 1"),
        (lambda: GradNormSpike(window=1), "GradNormSpike: window must be >= 2"),
        (lambda: NonFinite(skipped=1.0), "NonFinite: skipped must be in [0, 1), got 1.0"),
        (lambda: NonFinite(window=0), "NonFinite: window must be > 0"),
        (lambda: CollapseMonitor(patience=0), "collapse.patience must be >= 1, got 0"),
        (lambda: CollapseMonitor(warmup_iterations=-1), "collapse.warmup_iterations must be >= 0"),
        (lambda: CollapseMonitor(max_rollbacks=0), "collapse.max_rollbacks must be >= 1"),
        (lambda: CollapseMonitor(snapshot_every_n_iterations=0), "must be >= 1, got 0"),
        (lambda: CollapseMonitor(lr_factor=0.0), "collapse.lr_factor must be in (0, 1], got 0.0"),
        (lambda: CollapseMonitor(lr_factor=1.5), "collapse.lr_factor must be in (0, 1], got 1.5"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make, said):
    with pytest.raises(UserError) as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_rule_says_what_it_watches():
    for rule in default_rules():
        assert isinstance(rule, CollapseRule)
        assert rule.watches
