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


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw CPU-seconds and peak memory against what grows."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    axes_names = list(dict.fromkeys(one["axis"] for one in found))
    figure, axes = plt.subplots(1, len(axes_names), figsize=(3 * len(axes_names), 2.8))
    for axis, name in zip(axes, axes_names, strict=True):
        points = [one for one in found if one["axis"] == name]
        x = [one["value"] for one in points]
        for part in ("generation", "training"):
            axis.plot(x, [one[part] for one in points], "o-", label=f"{part}, CPU-s", ms=3)
        other = axis.twinx()
        other.plot(x, [one["peak_mb"] for one in points], "k:", label="peak MB")
        other.set_ylim(0, 1.3 * max(one["peak_mb"] for one in found))
        other.tick_params(labelsize=6)
        axis.set(xscale="log", yscale="log")
        axis.set_xlabel(AXES[name], fontsize=8)
        axis.set_xticks(x, [str(value) for value in x], fontsize=6)
        axis.minorticks_off()
        axis.tick_params(axis="y", labelsize=6)
    handles = [*axes[0].get_lines(), *other.get_lines()]
    figure.legend(handles=handles, loc="upper center", ncols=3, fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, dpi=90)


def main() -> None:
    """Measure, write, draw."""
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
        draw(found, Path(given.picture))


if __name__ == "__main__":
    main()
