"""The states of every random generator, so that a resumed run draws what it would have drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def collect_rng() -> dict[str, Any]:
    """Return the states of Python's, numpy's, torch's and every CUDA device's generator."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        # Plain integers: checkpoints are read with weights_only, which takes no numpy arrays.
        "numpy": (kind, [int(key) for key in keys], *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_rng(states: dict[str, Any]) -> None:
    """Put the generators back; CUDA states only where the number of devices is the same."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
