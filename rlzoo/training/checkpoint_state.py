"""What a checkpoint holds beside weights: counters, random states, the configuration."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlzoo import __version__, distributed
from rlzoo.errors import UserError

if TYPE_CHECKING:
    from rlzoo.training.module import RLModule


def save_state(module: RLModule, checkpoint: dict[str, Any]) -> None:
    """Add what a resumed run needs; every rank must call it.

    Args:
        module: The module that is saved.
        checkpoint: Lightning's dictionary, changed in place; frozen weights are taken out.
    """
    checkpoint["rlzoo"] = {
        "version": __version__,
        "config": module.run_config,
        "progress": dict(module.progress),
        "before": module.before,
        "rng": distributed.gather_objects(collect_rng()),
        "control": module.learner.control_state(),
    }
    for name, p in module.named_parameters(remove_duplicate=False):  # tied weights too
        if not p.requires_grad:
            checkpoint["state_dict"].pop(name, None)


def load_state(module: RLModule, checkpoint: dict[str, Any]) -> None:
    """Take counters and random states back; frozen weights come from their own source.

    Args:
        module: The module that goes on.
        checkpoint: What ``save_state`` wrote; frozen weights are put back in place.

    Raises:
        UserError: If the checkpoint was not written by rlzoo.
    """
    if "rlzoo" not in checkpoint:
        raise UserError("ckpt_path: the file was not written by rlzoo; give one that was")
    saved = checkpoint["rlzoo"]
    module.progress, module.before = dict(saved["progress"]), saved["before"]
    module.learner.load_control_state(saved.get("control", {}))
    if len(saved["rng"]) == distributed.world_size():
        module.resumed_rng = saved["rng"][distributed.rank()]
    own = module.state_dict()
    weights = checkpoint.setdefault("state_dict", {})  # DeepSpeed has loaded them by itself
    for name, p in module.named_parameters(remove_duplicate=False):
        if not p.requires_grad:
            weights.setdefault(name, own[name])


def collect_rng() -> dict[str, Any]:
    """Return the states of Python's, numpy's, torch's and every CUDA device's generator."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
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
