"""The picture of an inspection: kept shares, weights, signal over noise, cosines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

BLUE, ORANGE, GREEN, GRAY = "#0072b2", "#e69f00", "#009e73", "#4d4d4d"
"""Okabe-Ito colors, told apart by color-blind readers; hatches and markers differ as well."""


def draw(path: Path, found: dict[str, Any]) -> None:
    """Draw an inspection.

    Args:
        path: PNG to write.
        found: What ``examine`` returned.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(found["objectives"])
    height = 3.4 + 0.5 * len(names)
    figure = Figure(figsize=(max(11.0, 5 + height), 2 * height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    facts = [found["objectives"][name] for name in names]
    steps, seen = found["updates"], found["rollouts"]
    figure.suptitle(
        f"The same {seen['answers']} answers under {len(names)} objectives, "
        + (f"{steps} update{'' if steps == 1 else 's'} after sampling" if steps else "on-policy"),
        fontsize=13,
    )
    kept_panel(panels[0, 0], facts)
    weight_panel(panels[0, 1], facts)
    noise_panel(panels[1, 0], facts)
    for axes in (panels[0, 0], panels[0, 1], panels[1, 0]):
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    cosine_panel(figure, panels[1, 1], found["cosine"])
    figure.savefig(path)


def below(facts: list[dict[str, Any]]) -> float:
    """Return where a legend under the axis begins, in heights of the axes: 0.6 inches down."""
    return -0.6 / (2.1 + 0.5 * len(facts))


def kept_panel(axes: Any, facts: list[dict[str, Any]]) -> None:
    """Draw the shares of tokens and answers that keep gradient."""
    kinds = (
        ("kept_tokens", "tokens", BLUE, "", -0.27),
        ("kept_answers", "answers", ORANGE, "//", 0.0),
        ("kept_pull", "pull: tokens by w |A| (1 - p)", GREEN, "..", 0.27),
    )
    for key, label, color, hatch, shift in kinds:
        values = [100 * fact[key] for fact in facts]
        places = [row + shift for row in range(len(facts))]
        axes.barh(places, values, 0.26, color=color, hatch=hatch, edgecolor="white", label=label)
        for place, value in zip(places, values, strict=True):
            axes.text(value + 1, place, f"{value:.1f}", va="center", fontsize=7)
    axes.set(xlim=(0, 112), xlabel="% that keep gradient", title="What is left after the clip")
    axes.set_xticks(range(0, 101, 20))
    axes.legend(
        frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, below(facts))
    )


def weight_panel(axes: Any, facts: list[dict[str, Any]]) -> None:
    """Draw the spread of g: min to max thin, 10 to 90 percent thick, median as a dot."""
    for row, fact in enumerate(facts):
        first = not row
        ends, middle = (("weight_min", "weight_max"), ("weight_p10", "weight_p90"))
        axes.plot(
            [fact[k] for k in ends], [row, row], color=GRAY, lw=1.3, marker="|", ms=9,
            label="min to max" if first else None,
        )  # fmt: skip
        axes.plot(
            [fact[k] for k in middle], [row, row], color=GREEN, lw=7, alpha=0.55,
            solid_capstyle="butt", label="10 to 90 %" if first else None,
        )  # fmt: skip
        axes.plot(
            fact["weight_median"], row, color="black", marker="D", ms=6, ls="",
            label="median" if first else None,
        )  # fmt: skip
        text = "{weight_min:.3g} / {weight_median:.3g} / {weight_max:.3g}".format(**fact)
        axes.annotate(
            text, (fact["weight_median"], row), (0, 9), textcoords="offset points", fontsize=8,
            ha="center",
        )  # fmt: skip
    largest = max(abs(fact[k]) for fact in facts for k in ("weight_min", "weight_max"))
    if largest > 20:
        axes.set_xscale("symlog", linthresh=1.0)
    axes.axvline(1, color=GRAY, lw=1, ls=":")
    axes.set(xlabel="g (1: plain policy gradient, 0: none)", title="Weight of a token's gradient")
    axes.margins(x=0.15)
    axes.legend(
        frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, below(facts))
    )


def noise_panel(axes: Any, facts: list[dict[str, Any]]) -> None:
    """Draw signal to noise over prompt groups."""
    values = [fact["signal_to_noise"] for fact in facts]
    drawn = [value if math.isfinite(value) else 0.0 for value in values]
    axes.barh(range(len(facts)), drawn, 0.6, color=BLUE)
    top = max(*drawn, 1.0)
    for row, (value, fact) in enumerate(zip(values, facts, strict=True)):
        words = f"{value:.2f}" if math.isfinite(value) else str(value)
        text = f"{words}  (|grad| {fact['grad_norm']:.3g})"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(drawn[row] + 0.02 * top, row, text, va="center", fontsize=8, bbox=box, zorder=4)
    axes.axvline(1, color="black", lw=1.2, ls=(0, (4, 3)), label="noise alone")
    axes.set(
        xlim=(0, 1.4 * top),
        xlabel="|mean|² / (variance / n) over prompt groups",
        title="Signal to noise of the gradient",
    )
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, below(facts)))


def cosine_panel(figure: Any, axes: Any, cosine: dict[str, Any]) -> None:
    """Draw the matrix of cosines with its numbers."""
    names, matrix = cosine["names"], cosine["matrix"]
    image = axes.imshow(matrix, cmap="PuOr", vmin=-1, vmax=1)
    size = 9 if len(names) <= 8 else 7
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            color = "white" if abs(value) > 0.65 else "black"
            text = f"{value:.2f}" if math.isfinite(value) else "-"
            axes.text(j, i, text, ha="center", va="center", color=color, fontsize=size)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title("Cosine of the gradients")
    figure.colorbar(image, ax=axes, shrink=0.8)
