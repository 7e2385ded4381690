"""Write the tables of docs/performance.md from docs/performance/*.json.

python -m benchmarks.render [--check]

The files come from `python -m benchmarks.step --json` and `python -m benchmarks.scaling --json`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
NAMES = {"smollm2": "SmolLM2-135M", "dense": "dense, 0.8 M", "moe": "8 experts, 1.5 M"}
AXES = {
    "group": "answers per prompt",
    "new_tokens": "longest answer",
    "prompt_tokens": "prompt tokens",
    "vocabulary": "vocabulary",
}


def results(folder: Path) -> list[dict[str, Any]]:
    """Read all results of the step benchmark, in the order of their names."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("step_*.json"))]
    order = list(NAMES)
    return sorted(found, key=lambda one: (order.index(one["model"]), one["vocabulary"]))


def lines(head: str, rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    columns = [cell.strip() for cell in head.split("|")]
    table = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def work(one: dict[str, Any]) -> list[str]:
    """Name what a row measures."""
    name = NAMES[one["model"]]
    if one["model"] != "smollm2" and one["vocabulary"] != 512:
        name += f", V = {one['vocabulary']:,}"
    return [name, one["work"]["algorithm"], str(one["work"]["minibatches"])]


def settings(one: dict[str, Any]) -> str:
    """Name the precision of both sides, and whether ours recomputes activations."""
    recomputed = ", recomputed" if one["work"].get("checkpointing") else ""
    return f"{one['work']['precision']}{recomputed} / {one['peer_setting']}"


def step_table(found: list[dict[str, Any]]) -> str:
    """Compare whole steps with the peer's."""

    def both(one: dict[str, Any], part: str) -> str:
        ours, peer = (one[side][f"{part}_cpu"]["median"] for side in ("rlzoo", "peer"))
        return f"{ours:.2f} / {peer:.2f}"

    rows = [
        [
            *work(one),
            settings(one),
            both(one, "generation"),
            both(one, "scoring"),
            both(one, "training"),
            both(one, "step"),
            f"**{one['ratio']['step_cpu']:.2f}**",
            f"{one['ratio']['step_cpu_min']:.2f}",
            f"{one['rlzoo']['cycles']} / {one['peer']['cycles']}",
        ]
        for one in found
        if "peer" in one
    ]
    head = "model | objective | updates | precision / TRL's setting | generation | scoring | "
    head += "training | step | ratio | ratio of minima | iterations"
    return lines(head, rows)


def memory_table(found: list[dict[str, Any]]) -> str:
    """Compare peak memory and throughput."""
    rows = [
        [
            *work(one),
            settings(one),
            f"{one['rlzoo']['peak_mb']:.0f} / {one['peer']['peak_mb']:.0f}",
            f"{one['rlzoo']['peak_mb'] / one['peer']['peak_mb']:.2f}",
            *(
                f"{one['rlzoo'][name]:.0f} / {one['peer'][name]:.0f}"
                for name in ("generation_tokens_per_cpu_s", "step_tokens_per_cpu_s")
            ),
        ]
        for one in found
        if "peer" in one
    ]
    head = "model | objective | updates | precision / TRL's setting | peak MB | rlzoo of TRL's | "
    return lines(head + "tokens sampled per CPU-s | tokens per CPU-s of the step", rows)


def scaling_table(folder: Path) -> str:
    """Show how cost and memory grow."""
    path = folder / "scaling.json"
    found = json.loads(path.read_text()) if path.exists() else []
    rows = [
        [
            AXES[one["axis"]],
            f"{one['value']:,}",
            f"{one['tokens']:,}",
            *(f"{one[part]:.2f}" for part in ("generation", "training", "step")),
            f"{1000 * one['step'] / one['tokens']:.3f}",
            f"{one['peak_mb']:.0f}",
        ]
        for one in found
    ]
    head = "what grows | to | tokens | generation | training | step | CPU-ms per token | peak MB"
    return lines(head, rows)


def page(text: str, folder: Path) -> str:
    """Return the page with its tables as the files have them."""
    found = results(folder)
    tables = {
        "step": step_table(found),
        "memory": memory_table(found),
        "scaling": scaling_table(folder),
    }
    for name, table in tables.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, rf"\g<1>{table}\n\g<2>", text, flags=re.S)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for the table '{name}', not 1")
    return text


def main() -> None:
    """Write the page, or say that it is out of date."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="change nothing")
    given = options.parse_args()
    old = PAGE.read_text()
    new = page(old, DOCS / "performance")
    if given.check and new != old:
        raise SystemExit(f"{PAGE} is out of date; run python -m benchmarks.render")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
