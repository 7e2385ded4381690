"""Checkpoints in shares, one per process, and the whole policy beside them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlzoo.errors import UserError
from rlzoo.strategies.deepspeed.autoep import whole_weights

SHARD_MAP = "layout.json"
WEIGHTS = "weights.ckpt"
WHOLE = ("rlzoo", "pytorch-lightning_version", "epoch", "global_step")
"""What the file of the whole policy says beside its weights."""


def checkpoint_file(path: str) -> str:
    """Return the file that holds a checkpoint's whole policy.

    Args:
        path: A checkpoint: a file, or a folder of shares.

    Returns:
        The path itself, unless it is a folder of shares.

    Raises:
        UserError: If the folder holds nothing but shares.
    """
    if not (Path(path) / SHARD_MAP).is_file():
        return path
    if not (Path(path) / WEIGHTS).is_file():
        raise UserError(
            f"ckpt_path '{path}' holds shares only; resume it for an iteration with "
            "trainer.strategy.init_args.full_weights true, and give the new checkpoint"
        )
    return str(Path(path) / WEIGHTS)


def write_shard_map(folder: Path, shard_map: dict[str, int]) -> None:
    """Note how weights and optimizer states are cut up."""
    (folder / SHARD_MAP).write_text(json.dumps(shard_map))


def check_shard_map(folder: Path, shard_map: dict[str, int]) -> None:
    """Refuse a checkpoint that was cut up in another way.

    Raises:
        UserError: Naming both ways.
    """
    file = folder / SHARD_MAP
    if not file.is_file():
        raise UserError(
            f"ckpt_path '{folder}' is not a checkpoint of DeepSpeedExpertParallelStrategy; resume "
            "with the strategy that wrote it, or export it and set model.policy.path"
        )
    saved = json.loads(file.read_text())
    if saved != shard_map:
        raise UserError(
            f"ckpt_path '{folder}' was written with {_shown(saved)} and this run has "
            f"{_shown(shard_map)}; use the same, or export it and set model.policy.path"
        )


def _shown(shard_map: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in shard_map.items())


def whole_policy(policy: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Return the trained weights on the CPU, under the names of an unsharded checkpoint.

    Every rank must call it.

    Args:
        policy: The policy.
        keep: Whether this rank wants the result.

    Returns:
        Weights by name; empty unless kept.
    """
    import deepspeed

    def gathered(parameters: list[Any]) -> Any:
        cut = [p for p in parameters if hasattr(p, "ds_id")]
        return deepspeed.zero.GatheredParameters(cut) if cut else nullcontext()

    found = {}
    for name, value in whole_weights(policy, gathered):
        if keep:
            found[f"policy.{name}"] = value.to("cpu", copy=True)
    return found
