"""The plots of a comparison, and the caption of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlzoo.compare.reporting import bars, charts
from rlzoo.compare.reporting.charts import LineStyle
from rlzoo.compare.reporting.collect import HELD_OUT, RecordedComparison, RecordedRun
from rlzoo.compare.reporting.diagnostics import (
    CLIPPING,
    TRAINING,
    Measure,
    length_range,
    middle,
    middles,
    spread_by_length,
)
from rlzoo.compare.reporting.expert_figures import EXPERTS, MAPS, loads, plot_heat_map
from rlzoo.compare.reporting.measures import (
    SMOOTHING,
    Curve,
    by_iteration,
    by_seconds,
    by_tokens,
    confidence,
    curve,
    trailing,
)
from rlzoo.compare.reporting.results import Results

BAND = (
    "Line: mean over seeds. Band: pointwise 95 % t interval of that mean, with 3 seeds or more; no "
    "verdict rests on it. Bands that leave the frame are cut by it."
)
SMOOTHED = f"Each seed averaged over its last {SMOOTHING} iterations."
RANGE = "Line: mean over seeds. Band: smallest to largest seed."
AXES: dict[str, tuple[str, Callable[[RecordedRun], dict[int, float]]]] = {
    "iterations": ("iteration", by_iteration),
    "tokens": ("response tokens sampled", by_tokens),
    "wall-clock": ("seconds in iterations, evaluation left out", by_seconds),
}
CURVES = [
    ("accuracy", HELD_OUT, "held-out accuracy", 1),
    ("reward", "reward/mean", "training reward", SMOOTHING),
]


@dataclass(frozen=True)
class Picture:
    """A plot of the report: its PNG, title and caption."""

    section: str
    path: Path
    title: str
    caption: str


def plot_figures(comparison: RecordedComparison, results: Results, folder: Path) -> list[Picture]:
    """Plot every figure for which there are numbers.

    Args:
        comparison: What was read.
        results: The figures.
        folder: Where the PNGs go.

    Returns:
        The pictures, by section.
    """
    styles = charts.line_styles(comparison.variants)
    runs = {name: found for name in comparison.variants if (found := comparison.of(name))}
    pictures = [*_accuracies(results, styles, folder), *_learning(comparison, runs, styles, folder)]
    groups = (("clipping", CLIPPING), ("training", TRAINING), ("experts", EXPERTS))
    for section, measures in groups:
        for measure in measures:
            pictures += _measure(section, measure, runs, styles, folder)
        if section == "clipping":
            pictures += _by_length(runs, styles, folder)
    return [*pictures, *_loads(runs, folder), *_time(results, folder)]


def _accuracies(results: Results, styles: dict[str, LineStyle], folder: Path) -> list[Picture]:
    rows = [
        bars.Bar(
            v.variant,
            v.final.mean,
            v.final.bootstrap,
            v.final.t,
            tuple(v.final.per_seed.values()),
            styles[v.variant].color,
            styles[v.variant].marker,
        )
        for v in results.variants
        if v.final.mean is not None
    ]
    pictures = []
    if rows:
        path, title = folder / "final_accuracy.png", "Final accuracy"
        bars.plot_intervals(path, rows, title=title, x="held-out accuracy, last evaluation")
        text = (
            "Filled: mean over seeds. Hollow: single seeds. Thick bar: 95 % bootstrap interval of "
            "the mean. Thin bar: 95 % t interval. Overlap of two bars decides nothing: pairs do."
        )
        pictures.append(Picture("accuracy", path, title, text))
    rows = [
        bars.Bar(
            f"{p.first} minus {p.second}",
            p.final.difference,
            (p.final.single.low, p.final.single.high) if p.final.single else None,
            (p.final.simultaneous.low, p.final.simultaneous.high) if p.final.simultaneous else None,
        )
        for p in results.pairs
        if p.final.difference is not None
    ]
    if rows:
        path, title = folder / "differences.png", "Differences, paired by seed"
        bars.plot_intervals(
            path, rows, title=title, x="difference in accuracy", zero="no difference"
        )
        text = (
            "Thick bar: 95 % t interval of this pair alone. Thin bar: widened for the number of "
            "pairs. A difference is shown only where the thin bar leaves out 0. A point without a "
            "bar has too few seeds."
        )
        pictures.append(Picture("pairs", path, title, text))
    return pictures


def _learning(
    comparison: RecordedComparison,
    runs: dict[str, list[RecordedRun]],
    styles: dict[str, LineStyle],
    folder: Path,
) -> list[Picture]:
    pictures = []
    shortest = min((run.iterations for run in comparison.used), default=0)
    for against, (x, axis) in AXES.items():
        for word, metric, label, wanted in CURVES:
            window = wanted if shortest >= 2 * wanted else 1
            curves = {
                name: curve(seeds, metric, axis, band=confidence, smooth=window)
                for name, seeds in runs.items()
            }
            lost = []
            for run in comparison.runs:
                xs = axis(run) if run.problem else {}
                line = [(xs[i], y) for i, y in trailing(run.series(metric), window) if i in xs]
                if len(line) > 1:
                    lost.append((run.variant, [p[0] for p in line], [p[1] for p in line]))
            if not any(c.x for c in curves.values()) and not lost:
                continue
            path = folder / f"{word}_{against.replace('-', '_')}.png"
            title = f"{label.capitalize()} against {against}"
            cut = (0.0, 1.0) if metric == HELD_OUT else None
            charts.plot_lines(
                path, curves, styles, title=title, x=x, y=label, cut=cut, broken_off=lost
            )
            caption = BAND if window == 1 else f"{SMOOTHED} {BAND}"
            pictures.append(Picture("learning", path, title, caption))
    return pictures


def _measure(
    section: str,
    measure: Measure,
    runs: dict[str, list[RecordedRun]],
    styles: dict[str, LineStyle],
    folder: Path,
) -> list[Picture]:
    curves = {v: curve(seeds, measure.metric) for v, seeds in runs.items()}
    curves = {v: signed(c, measure.sign) for v, c in curves.items() if c.x}
    if not curves:
        return []
    highest = max(max(c.y) for c in curves.values())
    scale = measure.scale if measure.scale != "log" or highest > 0 else "linear"
    zeros = " Zeros are not shown." if scale == "log" else ""
    path = folder / f"{measure.file}.png"
    charts.plot_lines(
        path, curves, styles, title=measure.title, x="iteration", y=measure.label, scale=scale
    )
    return [Picture(section, path, measure.title, f"{measure.caption} {RANGE}{zeros}")]


def signed(line: Curve, sign: int) -> Curve:
    """Return a curve, upside down if the sign is negative."""
    if sign > 0:
        return line
    y, low, high = ([-value for value in ys] for ys in (line.y, line.high, line.low))
    return Curve(line.x, y, low, high, line.n)


def _by_length(
    runs: dict[str, list[RecordedRun]], styles: dict[str, LineStyle], folder: Path
) -> list[Picture]:
    found = {
        name: (spread_by_length(seeds, "token"), spread_by_length(seeds, "sequence"))
        for name, seeds in runs.items()
    }
    buckets = sorted({bucket for kinds in found.values() for kind in kinds for bucket in kind})
    if not buckets:
        return []
    series = {
        name: (middles(tokens), middles(sequences)) for name, (tokens, sequences) in found.items()
    }
    ticks = {middle(bucket): length_range(bucket) for bucket in buckets}
    path, title = folder / "ratio_by_length.png", "Spread of ratios by answer length"
    charts.plot_points(
        path, series, ticks, styles, title=title, x="answer length, tokens", y="std of log-ratio"
    )
    text = (
        "Mean over iterations and seeds. Averaging independent tokens would divide their spread "
        "by the square root of the length."
    )
    return [Picture("clipping", path, title, text)]


def _loads(runs: dict[str, list[RecordedRun]], folder: Path) -> list[Picture]:
    pictures: list[Picture] = []
    for name, seeds in list(runs.items())[:MAPS]:
        for when in ("first", "last"):
            found = loads(seeds, when)
            if found is None:
                continue
            layers, table, iteration = found
            path = folder / f"experts_{when}_{len(pictures) // 2}.png"
            plot_heat_map(path, layers, table, f"{name}, iteration {iteration}")
            text = (
                f"{name}: tokens of each expert in iteration {iteration} over the mean of its "
                "layer, averaged over seeds. A dark column is an expert that is hardly used."
            )
            pictures.append(Picture("experts", path, f"Load by expert, {name}", text))
    return pictures


def _time(results: Results, folder: Path) -> list[Picture]:
    rows = {v.variant: v.seconds for v in results.variants if v.seconds}
    if not rows:
        return []
    path, title = folder / "time.png", "Where an iteration's time goes"
    bars.plot_stacked(path, rows, title=title, x="seconds per iteration")
    text = "Mean over iterations and seeds. Rest: time of an iteration that no stage claims."
    return [Picture("time", path, title, text)]
