"""Bar charts with a row per variant or pair: intervals, and the parts of a total."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlzoo.compare.reporting.charts import charted
from rlzoo.display.plots import BLACK, COLORS, DARK_GRAY

HATCHES = ("", "///", "...", "xxx", "\\\\\\")


@dataclass(frozen=True)
class Bar:
    """A row of an interval chart: points, mean, a thick and a thin interval."""

    label: str
    mean: float
    thick: tuple[float, float] | None = None
    thin: tuple[float, float] | None = None
    points: tuple[float, ...] = ()
    color: str = DARK_GRAY
    marker: str = "o"


def plot_intervals(path: Path, bars: Sequence[Bar], *, title: str, x: str, zero: str = "") -> None:
    """Plot estimates with two intervals, a row each.

    Args:
        path: PNG to write.
        bars: Rows, top to bottom.
        title: Headline.
        x: Label of the x-axis.
        zero: What a vertical line at 0 means; no line if empty.
    """
    texts = [textwrap.fill(bar.label, 22) for bar in bars]
    height = 1.3 + sum(0.3 + 0.2 * (text.count("\n") + 1) for text in texts)
    with charted(path, title, height) as axes:
        for row, bar in enumerate(bars):
            if bar.thin:
                axes.plot(bar.thin, [row, row], color=bar.color, lw=1.2, marker="|", ms=9)
            if bar.thick:
                axes.plot(bar.thick, [row, row], color=bar.color, lw=5, alpha=0.45)
            axes.plot(bar.mean, row, color=bar.color, marker=bar.marker, ms=8, ls="")
            rows = [row + 0.26] * len(bar.points)
            axes.plot(bar.points, rows, color=bar.color, marker="o", mfc="white", ms=4.5, ls="")
        axes.set_yticks(range(len(bars)), texts)
        axes.set_ylim(len(bars) - 0.45, -0.55)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x)
        if zero:
            axes.axvline(0, color=BLACK, lw=1.2, ls=(0, (4, 3)), label=zero)


def plot_stacked(
    path: Path, rows: Mapping[str, Mapping[str, float]], *, title: str, x: str
) -> None:
    """Plot the parts of each row's total.

    Args:
        path: PNG to write.
        rows: Row to part to value; parts in the same order everywhere.
        title: Headline.
        x: Label of the x-axis.
    """
    texts = [textwrap.fill(name, 22) for name in rows]
    height = 1.2 + sum(0.3 + 0.2 * (text.count("\n") + 1) for text in texts)
    parts = list(next(iter(rows.values())))
    with charted(path, title, height) as axes:
        left = [0.0] * len(rows)
        for i, part in enumerate(parts):
            values = [row[part] for row in rows.values()]
            axes.barh(
                range(len(rows)),
                values,
                left=left,
                height=0.62,
                color=COLORS[i % len(COLORS)],
                edgecolor="white",
                hatch=HATCHES[i % len(HATCHES)],
                label=part,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), texts)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x)
