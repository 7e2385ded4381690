"""The style of every plot: colors, frame, and how its PNG is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, ORANGE, BLACK = "#56b4e9", "#e69f00", "#000000"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK)
"""Colors that color-blind readers can tell apart.

Source: M. Okabe and K. Ito, "Color Universal Design". Their yellow is left out: it is too pale for
lines on white. Plots also vary markers, dashes or hatches, so that color is never the only cue.
"""
LIGHT_GRAY, GRAY, DARK_GRAY = "#9aa5b1", "#7f7f7f", "#4d4d4d"
"""For what is not compared: reference lines, background curves, notes in a legend."""
STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


@contextmanager
def figure_file(
    path: Path, *, size: tuple[float, float], dpi: int, style: dict[str, Any] | None = None
) -> Iterator[Figure]:
    """Give an empty figure in the common style, and write it as a PNG at the end.

    Args:
        path: PNG to write.
        size: Width and height in inches.
        dpi: Pixels per inch.
        style: Settings of ``matplotlib.rcParams`` for this figure alone.

    Yields:
        The figure; its layout keeps labels apart.
    """
    # Imported here: matplotlib takes a second to load, and most commands plot nothing.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {**STYLE, **(style or {})}
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        # pyplot would keep every figure open, and may look for a screen.
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path)
