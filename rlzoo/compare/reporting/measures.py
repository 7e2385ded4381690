"""Figures of one run, and curves over the seeds of one variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rlzoo.compare.reporting.collect import HELD_OUT, RecordedRun, Series
from rlzoo.compare.reporting.statistics import t_interval

SMOOTHING = 5
STAGES = {
    "sampling": "time/rollout_s",
    "rewards": "time/rewards_s",
    "log-probs": "time/log_probs_s",
    "training": "time/training_s",
}


@dataclass(frozen=True)
class Curve:
    """Mean and band of one metric over seeds, at points that all seeds reach.

    Attributes:
        x: Iteration, tokens or seconds.
        y: Mean over seeds.
        low: Lower end of the band; empty with too few seeds for one.
        high: Upper end.
        n: Seeds.
    """

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    n: int = 0


def final_accuracy(run: RecordedRun) -> float | None:
    """Return the held-out accuracy of the last evaluation."""
    series = run.series(HELD_OUT)
    return series[-1][1] if series else None


def area(run: RecordedRun) -> float | None:
    """Return the held-out accuracy averaged over iterations.

    The area under the line through all evaluations, by trapezoids, divided by its width.

    Args:
        run: A run with at least two evaluations.

    Returns:
        The average, or None with fewer.
    """
    series = run.series(HELD_OUT)
    if len(series) < 2:
        return None
    total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(series))
    return total / (series[-1][0] - series[0][0])


def largest_drop(values: Sequence[float]) -> float | None:
    """Return the furthest fall below the best so far, ``max_i (max_{j <= i} v_j - v_i)``."""
    if not values:
        return None
    best, drop = values[0], 0.0
    for value in values:
        best = max(best, value)
        drop = max(drop, best - value)
    return drop


def smoothed(values: Sequence[float], window: int = SMOOTHING) -> list[float]:
    """Return means over whole windows of consecutive values; fewer values than one give none."""
    ends = range(window, len(values) + 1)
    return [sum(values[end - window : end]) / window for end in ends]


def average(run: RecordedRun, name: str) -> float | None:
    """Return the mean of a metric over a run's iterations, None if it was not logged."""
    values = [v for _, v in run.series(name)]
    return sum(values) / len(values) if values else None


def time_split(run: RecordedRun) -> dict[str, float]:
    """Return the mean seconds of an iteration by stage, and the rest; empty if not logged."""
    whole = average(run, "time/iteration_s")
    if whole is None:
        return {}
    parts = {stage: average(run, name) or 0.0 for stage, name in STAGES.items()}
    return parts | {"rest": max(0.0, whole - sum(parts.values()))}


def by_iteration(run: RecordedRun) -> dict[int, float]:
    """Return the x of every iteration when x is the iteration."""
    return {int(row["iteration"]): float(row["iteration"]) for row in run.rows}


def by_tokens(run: RecordedRun) -> dict[int, float]:
    """Return response tokens sampled since the start, by iteration."""
    return _from_zero(run.series("tokens/total"))


def by_seconds(run: RecordedRun) -> dict[int, float]:
    """Return seconds spent in iterations since the start, evaluations left out, by iteration."""
    total, result = 0.0, []
    for iteration, seconds in run.series("time/iteration_s"):
        total += seconds
        result.append((iteration, total))
    return _from_zero(result)


def _from_zero(series: Series) -> dict[int, float]:
    return {0: 0.0, **dict(series)} if series else {}


def confidence(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean; None with two seeds, 18 deviations wide as it is."""
    band = t_interval(values) if len(values) > 2 else None
    return (band.low, band.high) if band else None


def extremes(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the smallest and the largest; None with one seed."""
    return (min(values), max(values)) if len(values) > 1 else None


def trailing(series: Series, window: int = SMOOTHING) -> Series:
    """Return a series of means over the last few values, each at its last iteration."""
    means = smoothed([y for _, y in series], window)
    return [(i, y) for (i, _), y in zip(series[window - 1 :], means, strict=True)]


def curve(
    runs: Sequence[RecordedRun],
    name: str,
    axis: Callable[[RecordedRun], dict[int, float]] = by_iteration,
    *,
    band: Callable[[Sequence[float]], tuple[float, float] | None] = extremes,
    smooth: int = 1,
) -> Curve:
    """Return mean and band of a metric over seeds.

    Seeds reach the same iteration with different tokens and seconds. Each seed's curve is therefore
    read, by linear interpolation, at the mean x of each iteration, where all seeds have values.

    Args:
        runs: The seeds of one variant.
        name: Metric.
        axis: x of each iteration of a run.
        band: Ends of the band at a point, from the values of all seeds.
        smooth: Iterations over which each seed is averaged first.

    Returns:
        The curve; empty if no run has the metric.
    """
    lines = []
    for run in runs:
        xs = axis(run)
        line = [(i, xs[i], y) for i, y in trailing(run.series(name), smooth) if i in xs]
        if line:
            lines.append(line)
    if not lines:
        return Curve()
    shared = set.intersection(*({i for i, _, _ in line} for line in lines))
    at = [float(np.mean([x for line in lines for i, x, _ in line if i == s])) for s in shared]
    first, last = max(line[0][1] for line in lines), min(line[-1][1] for line in lines)
    at = sorted({first, last, *(x for x in at if first < x < last)} if first <= last else ())
    rows = [np.interp(at, [p[1] for p in line], [p[2] for p in line]) for line in lines]
    values = np.array(rows).T.tolist()
    bands = [ends for row in values if (ends := band(row)) is not None]
    return Curve(
        x=at,
        y=[sum(row) / len(row) for row in values],
        low=[low for low, _ in bands],
        high=[high for _, high in bands],
        n=len(lines),
    )
