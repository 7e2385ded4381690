"""Charts with a row for each variant or pair: intervals, and what a total is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlzoo.compare.reporting.charts import COLOURS, drawing

HATCHES = ("", "///", "...", "xxx", "\\\\\\")


@dataclass(frozen=True)
class Bar:
    """A row of an interval chart: points, mean, a thick and a thin interval."""

    label: str
    mean: float
    thick: tuple[float, float] | None = None
    thin: tuple[float, float] | None = None
    points: tuple[float, ...] = ()
    colour: str = "#333333"
    marker: str = "o"


def intervals(path: Path, bars: Sequence[Bar], *, title: str, x: str, zero: str = "") -> None:
    """Draw estimates with two intervals, a row each.

    Args:
        path: PNG to write.
        bars: Rows, top to bottom.
        title: Headline.
        x: Label of the x-axis.
        zero: What a vertical line at 0 means; no line if empty.
    """
    texts = [textwrap.fill(bar.label, 22) for bar in bars]
    height = 1.3 + sum(0.3 + 0.2 * (text.count("\n") + 1) for text in texts)
    with drawing(path, title, height) as axes:
        for row, bar in enumerate(bars):
            if bar.thin:
                axes.plot(bar.thin, [row, row], color=bar.colour, lw=1.2, marker="|", ms=9)
            if bar.thick:
                axes.plot(bar.thick, [row, row], color=bar.colour, lw=5, alpha=0.45)
            axes.plot(bar.mean, row, color=bar.colour, marker=bar.marker, ms=8, ls="")
            rows = [row + 0.26] * len(bar.points)
            axes.plot(bar.points, rows, color=bar.colour, marker="o", mfc="white", ms=4.5, ls="")
        axes.set_yticks(range(len(bars)), texts)
        axes.set_ylim(len(bars) - 0.45, -0.55)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x)
        if zero:
            axes.axvline(0, color="#000000", lw=1.2, ls=(0, (4, 3)), label=zero)


def stacked(path: Path, rows: Mapping[str, Mapping[str, float]], *, title: str, x: str) -> None:
    """Draw what each row's total is made of.

    Args:
        path: PNG to write.
        rows: Row to part to value; parts in the same order everywhere.
        title: Headline.
        x: Label of the x-axis.
    """
    texts = [textwrap.fill(name, 22) for name in rows]
    height = 1.2 + sum(0.3 + 0.2 * (text.count("\n") + 1) for text in texts)
    parts = list(next(iter(rows.values())))
    with drawing(path, title, height) as axes:
        left = [0.0] * len(rows)
        for i, part in enumerate(parts):
            values = [row[part] for row in rows.values()]
            axes.barh(
                range(len(rows)),
                values,
                left=left,
                height=0.62,
                color=COLOURS[i % len(COLOURS)],
                edgecolor="white",
                hatch=HATCHES[i % len(HATCHES)],
                label=part,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), texts)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x)
