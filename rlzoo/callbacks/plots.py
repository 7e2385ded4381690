"""The plot of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlzoo.display.plots import BLUE, GREEN, LIGHT_GRAY, VERMILION, figure_file


def plot_rewards(
    path: Path,
    train: Sequence[tuple[int, float]],
    held_out: Mapping[str, Sequence[tuple[int, float]]],
    title: str,
) -> None:
    """Plot reward and held-out accuracy against iterations.

    Args:
        path: PNG to write.
        train: Pairs of iteration and mean training reward.
        held_out: Curve name to pairs of iteration and accuracy.
        title: Headline.
    """
    with figure_file(path, size=(7, 4.2), dpi=120) as figure:
        axes = figure.add_subplot()
        if train:
            axes.plot(*zip(*train, strict=True), color=LIGHT_GRAY, lw=1.2, label="training reward")
        looks = zip((BLUE, VERMILION, GREEN), "osD", strict=True)
        for (name, curve), (color, marker) in zip(held_out.items(), looks, strict=False):
            axes.plot(*zip(*curve, strict=True), color=color, marker=marker, ms=5, lw=2, label=name)
        axes.set(xlabel="iteration", ylabel="reward / accuracy", title=title)
        axes.grid()
        axes.legend(loc="lower right")
