"""Line charts and point charts, each legible on a telephone.

Variants differ in color, line style and marker, so that no line is told apart by color alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlzoo.compare.reporting.measures import Curve
from rlzoo.display.plots import COLORS, DARK_GRAY, figure_file

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
MARKERS = "osD^vPX*"
WIDTH = 5.4
HEIGHT = 3.3
DPI = 170
LINE = 74
FONTS = {"font.size": 11, "axes.titlesize": 12, "legend.fontsize": 10}


@dataclass(frozen=True)
class LineStyle:
    """How one variant looks in all figures."""

    color: str
    dashes: Any
    marker: str


def line_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Return a line style for each name; the first 56 all differ."""
    return {
        name: LineStyle(
            COLORS[i % len(COLORS)],
            DASHES[(i + i // len(COLORS)) % len(DASHES)],
            MARKERS[i % len(MARKERS)],
        )
        for i, name in enumerate(names)
    }


@contextmanager
def charted(path: Path, title: str, height: float = 0.0) -> Iterator[Any]:
    """Give axes to plot on, add the legend below, and write the PNG.

    Args:
        path: PNG to write.
        title: Headline.
        height: Of the figure without the legend, in inches; the usual one if 0.
    """
    height = height or HEIGHT
    with figure_file(path, size=(WIDTH, height), dpi=DPI, style=FONTS) as figure:
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontweight="bold")
        axes.grid()
        yield axes
        figure.set_size_inches(WIDTH, height + 0.23 * add_legend(figure, axes))


def shortened(label: str, limit: int = 58) -> str:
    """Return a label that fits the figure's width; names differ at their ends, so these stay.

    >>> shortened("GSPO-clip_low0.003-clip_high0.004-dense (n = 3)", 30)
    'GSPO-clip_lo...4-dense (n = 3)'
    """
    if len(label) <= limit:
        return label
    start = 2 * (limit - 3) // 5 + 2
    return f"{label[:start]}...{label[start + 3 - limit :]}"


def add_legend(figure: Any, axes: Any) -> int:
    """Put the legend below the axes, in as many columns as its names allow; return its rows."""
    handles, labels = axes.get_legend_handles_labels()
    rows = 0
    if labels:
        short = [shortened(label) for label in labels]
        columns = max(1, min(len(short), LINE // (max(map(len, short)) + 8), 3))
        figure.legend(handles, short, loc="outside lower left", ncols=columns)
        rows = -(-len(short) // columns)
    return rows


def plot_lines(
    path: Path,
    curves: Mapping[str, Curve],
    styles: Mapping[str, LineStyle],
    *,
    title: str,
    x: str,
    y: str,
    scale: str = "linear",
    cut: tuple[float, float] | None = None,
    broken_off: Sequence[tuple[str, list[float], list[float]]] = (),
) -> None:
    """Plot the mean of each variant with its band.

    Args:
        path: PNG to write.
        curves: Variant to curve.
        styles: Variant to line style.
        title: Headline.
        x: Label of the x-axis.
        y: Label of the y-axis.
        scale: ``linear``, ``log`` or ``share`` (linear near 0, logarithmic above).
        cut: Values beyond which nothing can lie.
        broken_off: Variant, x and y of runs that did not finish.
    """
    shown = {name: curve for name, curve in curves.items() if curve.x}
    pale = min(0.13, 0.6 / max(1, len(shown)))
    with charted(path, title) as axes:
        for turn, (name, curve) in enumerate(shown.items()):
            style, every = styles[name], max(1, len(curve.x) // 8)
            axes.plot(
                curve.x,
                curve.y,
                color=style.color,
                ls=style.dashes,
                marker=style.marker,
                ms=5,
                lw=1.8,
                markevery=(turn % every, every),  # in turn, so that none covers the others
                label=f"{name} (n = {curve.n})",
            )
            if curve.low:
                axes.fill_between(
                    curve.x, curve.low, curve.high, color=style.color, alpha=pale, lw=0
                )
        for name, xs, ys in broken_off:
            axes.plot(xs, ys, color=styles[name].color, lw=0.9, alpha=0.8)
            axes.plot(xs[-1:], ys[-1:], color=styles[name].color, marker="x", ms=8, mew=2, ls="")
        if broken_off:
            axes.plot([], [], color=DARK_GRAY, lw=0.9, marker="x", ms=7, label="did not finish")
        axes.set(xlabel=x, ylabel=y)
        _thousands(axes)
        _scale(axes, scale)
        _frame(axes, [value for curve in shown.values() for value in curve.y], scale, cut)


def _scale(axes: Any, scale: str) -> None:
    if scale == "log":
        _logarithmic(axes)
    elif scale == "share":
        axes.set_yscale("symlog", linthresh=1e-3, linscale=0.5)
        axes.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])


def _logarithmic(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _thousands(axes: Any) -> None:
    """Write 20k for 20,000, and few ticks, so that labels never touch."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _frame(axes: Any, means: list[float], scale: str, cut: tuple[float, float] | None) -> None:
    """Keep wide bands from shrinking the lines: show at most one range of the means beyond."""
    if scale == "share":
        axes.set_ylim(-3e-4, 1.3 if max(means, default=0) > 0.1 else 0.3)
    elif scale == "log":
        positive = [value for value in means if value > 0]
        if positive:
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, min(positive) / 5), min(high, max(positive) * 5))
    elif means:
        low, high = axes.get_ylim()
        room = max(max(means) - min(means), 1e-3)
        low, high = max(low, min(means) - room), min(high, max(means) + room)
        if cut:
            low, high = max(low, cut[0] - 0.02), min(high, cut[1] + 0.02)
        axes.set_ylim(low, high)


def plot_points(
    path: Path,
    series: Mapping[str, tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]]],
    ticks: Mapping[float, str],
    styles: Mapping[str, LineStyle],
    *,
    title: str,
    x: str,
    y: str,
) -> None:
    """Plot token ratios (filled) and sequence ratios (hollow) against lengths, logarithmically.

    Args:
        path: PNG to write.
        series: Variant to pairs of x and y, of tokens and of sequences.
        ticks: x to its label.
        styles: Variant to line style.
        title: Headline.
        x: Label of the x-axis.
        y: Label of the y-axis.
    """
    with charted(path, title) as axes:
        for name, kinds in series.items():
            style = styles[name]
            for pairs, fill, label in zip(kinds, (style.color, "white"), (name, None), strict=True):
                axes.plot(
                    [a for a, _ in pairs],
                    [b for _, b in pairs],
                    color=style.color,
                    ls=style.dashes,
                    marker=style.marker,
                    mfc=fill,
                    ms=7,
                    label=label,
                )
        for fill, label in ((DARK_GRAY, "filled: tokens"), ("white", "hollow: sequences")):
            axes.plot([], [], color=DARK_GRAY, marker="o", mfc=fill, ls="", ms=7, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        _logarithmic(axes)
        axes.set(xlabel=x, ylabel=y)
