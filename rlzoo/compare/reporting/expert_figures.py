"""Figures of mixtures of experts: volatility and balance over iterations, load by expert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlzoo.compare.reporting.charts import charted, shortened
from rlzoo.compare.reporting.collect import RecordedRun
from rlzoo.compare.reporting.diagnostics import Measure

MAPS = 6
EXPERTS = [
    Measure(
        "volatility",
        "moe/volatility",
        "Experts exchanged by an update",
        "share of expert slots",
        "Share of a token's expert slots that differ from those it had before the iteration's "
        "first update, on the same tokens, over its later updates. Exactly 0 under replay.",
        "share",
    ),
    Measure(
        "volatility_free",
        "moe/volatility_free",
        "Experts the routers would exchange",
        "share of expert slots",
        "The same for what the routers would have chosen by themselves: where replay is on, what "
        "it held back; elsewhere the figure before.",
        "share",
    ),
    Measure(
        "rollout_volatility",
        "moe/rollout_volatility",
        "Experts: sampler against trainer",
        "share of expert slots",
        "Share of expert slots in which sampler and trainer differ although their weights do not.",
        "share",
    ),
    Measure(
        "load_max",
        "moe/load_max",
        "Load of the busiest expert",
        "times the mean",
        "Tokens of a layer's busiest expert over the mean of the layer, averaged over layers.",
    ),
    Measure(
        "router_entropy",
        "moe/router_entropy",
        "Entropy of the routers",
        "nats per token",
        "Entropy of a token's distribution over experts. Towards 0 routers explore no other.",
    ),
]


def loads(
    runs: Sequence[RecordedRun], when: str
) -> tuple[list[int], list[list[float]], int] | None:
    """Return layers, mean load over seeds (layer by expert) and iteration; None if not known.

    Args:
        runs: Of one variant.
        when: ``first`` or ``last``.
    """
    found = [run.experts for run in runs if run.experts.get(when, {}).get("load")]
    if not found:
        return None
    tables = [entry[when]["load"] for entry in found]
    layers, experts = len(tables[0]), len(tables[0][0])
    tables = [t for t in tables if len(t) == layers and {len(row) for row in t} == {experts}]
    mean = [
        [sum(t[i][e] for t in tables) / len(tables) for e in range(experts)] for i in range(layers)
    ]
    return [int(i) for i in found[0]["layers"]], mean, int(found[0][when]["iteration"])


def plot_heat_map(path: Path, layers: list[int], table: list[list[float]], title: str) -> None:
    """Plot load by layer and expert; numbers are written into cells where there is room.

    Args:
        path: PNG to write.
        layers: Indices of decoder layers.
        table: Load over the mean of its layer, layer by expert.
        title: Headline.
    """
    count, experts = len(layers), len(table[0])
    highest = max(2.0, *(max(row) for row in table))
    with charted(path, shortened(title, 46), height=1.5 + 0.32 * min(count, 24)) as axes:
        image: Any = axes.imshow(table, cmap="viridis", vmin=0, vmax=highest, aspect="auto")
        axes.grid(visible=False)
        axes.set(xlabel="expert", ylabel="layer")
        step = -(-count // 16)
        axes.set_yticks(range(0, count, step), [str(i) for i in layers[::step]])
        axes.xaxis.get_major_locator().set_params(integer=True)
        if experts <= 16 and count <= 24:
            for i, row in enumerate(table):
                for e, value in enumerate(row):
                    dark = value < 0.6 * highest
                    axes.text(
                        *(e, i, f"{value:.1f}"),
                        **{"ha": "center", "va": "center", "fontsize": 9},
                        color="white" if dark else "black",
                    )
        axes.figure.colorbar(image, ax=axes, label="load, 1 is even")
