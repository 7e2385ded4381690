"""Measure how cost and memory grow with group size, answer length, prompt length and vocabulary.

python -m benchmarks.scaling [--json docs/performance/scaling.json]
    [--picture docs/images/scaling.png] [--only group,vocabulary] [--repeats 1]

The tiny dense model of `benchmarks.step`, one thing changed at a time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.render import AXES
from benchmarks.step.__main__ import measure
from benchmarks.step.__main__ import parser as step_parser
from rlzoo.display.plots import BLACK, BLUE, VERMILION, figure_file

POINTS = {
    "group": (4, 8, 16, 32),
    "new_tokens": (64, 128, 256, 512),
    "prompt_tokens": (32, 128, 512, 1024),
    "vocabulary": (512, 8192, 32768, 151936),
}


def point(axis: str, value: int, repeats: int) -> dict[str, Any]:
    """Measure one point."""
    options = {axis: value, "repeats": repeats, "cycles": 2}
    if axis == "new_tokens":
        options["median"] = value // 2
    if axis == "vocabulary":
        options |= {"group": 4, "prompts": 2}
    given = step_parser().parse_args([f"--{k}={v}" for k, v in options.items()])
    ours = measure(given)["rlzoo"]
    parts = {part: ours[f"{part}_cpu"]["median"] for part in ("generation", "training", "step")}
    found = {"axis": axis, "value": value, "tokens": ours["tokens"], **parts}
    found["peak_mb"] = ours["peak_mb"]
    print(json.dumps(found), flush=True)
    return found


def plot_scaling(found: list[dict[str, Any]], path: Path) -> None:
    """Plot CPU-seconds and peak memory against what grows."""
    axes_names = list(dict.fromkeys(one["axis"] for one in found))
    looks = {"generation": (BLUE, "o"), "training": (VERMILION, "s")}
    twins = {"axes.spines.right": True}  # the memory's axis stands on the right
    with figure_file(path, size=(3 * len(axes_names), 2.8), dpi=90, style=twins) as figure:
        panels = figure.subplots(1, len(axes_names), squeeze=False)[0]
        for axes, name in zip(panels, axes_names, strict=True):
            points = [one for one in found if one["axis"] == name]
            x = [one["value"] for one in points]
            for part, (color, marker) in looks.items():
                seconds = [one[part] for one in points]
                axes.plot(x, seconds, color=color, marker=marker, ms=3, label=f"{part}, CPU-s")
            memory = axes.twinx()
            memory.plot(x, [one["peak_mb"] for one in points], color=BLACK, ls=":", label="peak MB")
            memory.set_ylim(0, 1.3 * max(one["peak_mb"] for one in found))
            memory.tick_params(labelsize=6)
            axes.set(xscale="log", yscale="log")
            axes.set_xlabel(AXES[name], fontsize=8)
            axes.set_xticks(x, [str(value) for value in x], fontsize=6)
            axes.minorticks_off()
            axes.tick_params(axis="y", labelsize=6)
        handles = [*panels[0].get_lines(), *memory.get_lines()]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=7)


def main() -> None:
    """Measure, write, plot."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default=",".join(POINTS))
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--json")
    options.add_argument("--picture")
    given = options.parse_args()
    chosen = given.only.split(",")
    found = [point(axis, v, given.repeats) for axis in chosen for v in POINTS[axis]]
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n")
    if given.picture:
        plot_scaling(found, Path(given.picture))


if __name__ == "__main__":
    main()
