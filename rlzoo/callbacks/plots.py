"""The picture of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def reward_plot(
    path: Path,
    train: Sequence[tuple[int, float]],
    held_out: Mapping[str, Sequence[tuple[int, float]]],
    title: str,
) -> None:
    """Draw reward and held-out accuracy against iterations.

    Args:
        path: PNG to write.
        train: Pairs of iteration and mean training reward.
        held_out: Curve name to pairs of iteration and accuracy.
        title: Headline.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if train:
        axes.plot(*zip(*train, strict=True), color="#9aa5b1", lw=1.2, label="training reward")
    # Okabe-Ito colours, told apart by colour-blind readers; markers differ as well.
    for (name, curve), colour, marker in zip(
        held_out.items(), ("#0072b2", "#d55e00", "#009e73"), "osD", strict=False
    ):
        axes.plot(*zip(*curve, strict=True), color=colour, marker=marker, ms=5, lw=2, label=name)
    axes.set(xlabel="iteration", ylabel="reward / accuracy", title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path)
