"""The pictures of the page, in the style of every report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlzoo.compare.reporting import charts
from rlzoo.compare.reporting.diagnostics import length_range, middle, middles
from rlzoo.compare.reporting.measures import Curve

TITLES = {
    "claims": "Held-out accuracy: GRPO and GSPO, dense and MoE",
    "replay": "Held-out accuracy with and without Routing Replay",
    "stress": "Held-out accuracy, sixteen updates per rollout",
    "long": "Held-out accuracy, answers of up to 233 tokens",
}


def plot_figures(found: dict[str, Any], folder: Path) -> None:
    """Plot the learning curves of each experiment, and the spread of ratios by length.

    Args:
        found: Contents of ``docs/reproduction.json``.
        folder: Where the pictures go.
    """
    for name, title in TITLES.items():
        if name in found:
            _learning(found[name]["variants"], title, folder / f"reproduction_{name}.png")
    if "long" in found:
        _by_length(found["long"]["variants"], folder / "reproduction_by_length.png")


def _learning(variants: dict[str, Any], title: str, path: Path) -> None:
    curves = {}
    for label, found in variants.items():
        bands = found["bands"]
        curves[label] = Curve(
            x=[x for x, _ in found["curve"]],
            y=[y for _, y in found["curve"]],
            low=[low for low, _ in bands],
            high=[high for _, high in bands],
            n=len(found["seeds"]),
        )
    styles = charts.line_styles(list(variants))
    charts.plot_lines(
        path, curves, styles, title=title, x="iteration", y="held-out accuracy", cut=(0.0, 1.0)
    )


def _by_length(variants: dict[str, Any], path: Path) -> None:
    series: dict[str, Any] = {}
    buckets: set[tuple[float, float]] = set()
    for label, found in variants.items():
        kinds = []
        for kind in ("token", "sequence"):
            spread = by_length(found["means"], kind)
            buckets |= spread.keys()
            kinds.append(middles(spread))
        series[label] = (kinds[0], kinds[1])
    ticks = {middle(bucket): length_range(bucket) for bucket in sorted(buckets)}
    charts.plot_points(
        path,
        series,
        ticks,
        charts.line_styles(list(variants)),
        title="Spread of ratios by answer length",
        x="answer length, tokens",
        y="std of log-ratio",
    )


SHORTEST = 8
"""Shorter answers are too few to speak of: no right one has fewer than nine tokens."""


def by_length(means: dict[str, float], kind: str) -> dict[tuple[float, float], float]:
    """Return the spread of log-ratios by the ends of each bucket of lengths.

    Args:
        means: Metrics of a variant.
        kind: ``token`` or ``sequence``.

    Returns:
        First and last length of a bucket to standard deviation.
    """
    found = {}
    for name, value in means.items():
        start = f"policy/spread/{kind}_"
        if name.startswith(start) and value is not None:
            low, _, high = name.removeprefix(start).partition("_")
            if int(low) < SHORTEST:
                continue
            found[float(low), math.inf if high == "up" else float(high)] = value
    return found
