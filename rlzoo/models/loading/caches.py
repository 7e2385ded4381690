"""A bound on what a CPU's matrix library keeps of the shapes it has met."""

from __future__ import annotations

import os

# PyTorch's own cache and oneDNN's; both are sized when they are first used.
NAMES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
KEPT = 64


def bound_caches() -> None:
    """Let oneDNN keep 64 compiled products and not 1024, unless the environment says otherwise.

    Each number of tokens compiles products of its own, and without padding nearly every micro-batch
    has another: with room for 1024 a run's memory grows at every iteration. 64 are more than a pass
    through a model uses again.
    """
    for name in NAMES:
        os.environ.setdefault(name, str(KEPT))
