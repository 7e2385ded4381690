"""The figures of a comparison: per variant, and per pair of variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from rlzoo.compare.reporting.collect import HELD_OUT, RecordedComparison, RecordedRun
from rlzoo.compare.reporting.measures import (
    area,
    average,
    final_accuracy,
    largest_drop,
    smoothed,
    time_split,
)
from rlzoo.compare.reporting.statistics import (
    PairedDifference,
    bootstrap_interval,
    paired,
    t_interval,
)

AVERAGES = {
    "clip_fraction": "policy/clip_fraction",
    "clipped_answers": "policy/clipped_answers",
    "grad_norm": "optim/grad_norm",
    "length": "rollout/length",
    "skipped": "optim/skipped",
}


@dataclass(frozen=True)
class SeedSummary:
    """A number per seed, its mean, and two intervals of the mean.

    Attributes:
        per_seed: Seed to value.
        mean: Mean over seeds, None without any.
        bootstrap: Ends of the 95 % percentile bootstrap interval, None with one seed.
        t: Ends of the 95 % t interval, cut at 0 and 1, None with one seed.
    """

    per_seed: dict[int, float]
    mean: float | None
    bootstrap: tuple[float, float] | None
    t: tuple[float, float] | None


@dataclass(frozen=True)
class VariantResult:
    """What the runs of one variant that count have shown.

    Attributes:
        variant: Its name.
        algorithm: Its objective.
        axes: Settings that tell it from others.
        seeds: Seeds of the runs that count.
        lost: Runs that do not count.
        final: Held-out accuracy at the last evaluation.
        area: Held-out accuracy averaged over iterations.
        before: Mean held-out accuracy before training.
        measures: Means over seeds; for drops the largest of all seeds.
        seconds: Mean seconds of an iteration, by stage.
    """

    variant: str
    algorithm: str
    axes: dict[str, Any]
    seeds: list[int]
    lost: int
    final: SeedSummary
    area: SeedSummary
    before: float | None
    measures: dict[str, float | None]
    seconds: dict[str, float]


@dataclass(frozen=True)
class VariantPair:
    """Two variants compared on common seeds; ``area`` is not corrected and gets no verdict."""

    first: str
    second: str
    final: PairedDifference
    area: PairedDifference


@dataclass(frozen=True)
class Results:
    """All variants and all pairs.

    Attributes:
        variants: In the order of the runs.
        pairs: Those that differ in one thing: the objective, or one axis.
        comparisons: Pairs with at least two common seeds, by which levels are divided.
    """

    variants: list[VariantResult]
    pairs: list[VariantPair]
    comparisons: int

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return dataclasses.asdict(self)


def evaluate(comparison: RecordedComparison) -> Results:
    """Compute the figures of a comparison.

    Args:
        comparison: What was read from the folders.

    Returns:
        The figures; variants without a run that counts have empty ones.
    """
    variants = [_variant(comparison, name) for name in comparison.variants]
    chosen = [(a, b) for a, b in combinations(variants, 2) if comparable(a, b)]
    count = sum(len(set(a.seeds) & set(b.seeds)) > 1 for a, b in chosen)
    pairs = [
        VariantPair(
            a.variant,
            b.variant,
            paired(a.final.per_seed, b.final.per_seed, max(1, count)),
            paired(a.area.per_seed, b.area.per_seed),
        )
        for a, b in chosen
    ]
    return Results(variants, pairs, count)


def comparable(a: VariantResult, b: VariantResult) -> bool:
    """Tell whether two variants differ in one thing, so that the pair answers a question."""
    keys = a.axes.keys() | b.axes.keys()
    differing = sum(a.axes.get(key) != b.axes.get(key) for key in keys)
    return differing == 0 or (differing == 1 and a.algorithm == b.algorithm)


def _variant(comparison: RecordedComparison, name: str) -> VariantResult:
    runs = comparison.of(name)
    every = [run for run in comparison.runs if run.variant == name]
    starts = [run.series(HELD_OUT)[0] for run in runs]
    before = [accuracy for iteration, accuracy in starts if iteration == 0]
    measures = {key: _over(runs, _average(metric)) for key, metric in AVERAGES.items()}
    measures |= {
        "drop_held_out": _worst(runs, lambda r: [v for _, v in r.series(HELD_OUT)]),
        "drop_reward": _worst(runs, lambda r: smoothed([v for _, v in r.series("reward/mean")])),
        "iterations": _over(runs, lambda r: r.summary.get("iterations")),
        "updates": _over(runs, lambda r: r.summary.get("updates")),
        "tokens": _over(runs, lambda r: r.summary.get("tokens")),
        "run_seconds": _over(runs, lambda r: r.summary.get("seconds")),
    }
    splits = [split for run in runs if (split := time_split(run))]
    return VariantResult(
        variant=name,
        algorithm=every[0].algorithm,
        axes=every[0].axes,
        seeds=[run.seed for run in runs],
        lost=len(every) - len(runs),
        final=summarize({run.seed: final_accuracy(run) for run in runs}),
        area=summarize({run.seed: area(run) for run in runs}),
        before=fmean(before) if before else None,
        measures=measures,
        seconds={k: fmean([s[k] for s in splits]) for k in splits[0]} if splits else {},
    )


def summarize(per_seed: dict[int, float | None]) -> SeedSummary:
    """Return mean and intervals of the accuracies of all seeds.

    Args:
        per_seed: Seed to accuracy; seeds without one are left out.

    Returns:
        The accuracies with their mean and its intervals.
    """
    known = {seed: value for seed, value in per_seed.items() if value is not None}
    values = list(known.values())
    boot, t = bootstrap_interval(values), t_interval(values)
    return SeedSummary(
        per_seed=known,
        mean=fmean(values) if values else None,
        bootstrap=(boot.low, boot.high) if boot else None,
        t=(max(0.0, t.low), min(1.0, t.high)) if t else None,
    )


def _average(metric: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: average(run, metric)


def _over(
    runs: Sequence[RecordedRun], figure: Callable[[RecordedRun], float | None]
) -> float | None:
    values = [float(value) for run in runs if (value := figure(run)) is not None]
    return fmean(values) if values else None


def _worst(
    runs: Sequence[RecordedRun], values: Callable[[RecordedRun], list[float]]
) -> float | None:
    drops = [drop for run in runs if (drop := largest_drop(values(run))) is not None]
    return max(drops) if drops else None
