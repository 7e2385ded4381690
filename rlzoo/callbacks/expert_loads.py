"""The file that says where a mixture of experts sent its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlzoo.display.json_files import write_json
from rlzoo.training.expert_tracking import ExpertTracker

FILE = "experts.json"


def write_loads(folder: Path, experts: ExpertTracker | None, iteration: int) -> None:
    """Write the load of every expert in this iteration, beside that of the first one written.

    A load is an expert's tokens over the mean of its layer: 1 everywhere is even.

    Args:
        folder: Of the run.
        experts: What follows the policy's routing, or None.
        iteration: The one that has just ended.
    """
    if experts is None or experts.load is None:
        return
    path = folder / FILE
    load = experts.load / experts.load.mean(-1, keepdim=True)
    now = {"iteration": iteration, "load": [[round(x, 4) for x in row] for row in load.tolist()]}
    first: Any = now
    if iteration > 1 and path.is_file():
        first = json.loads(path.read_text(encoding="utf-8"))["first"]
    layers = list(experts.sizes.layers)
    write_json(path, {"layers": layers, "first": first, "last": now}, indent=None)
