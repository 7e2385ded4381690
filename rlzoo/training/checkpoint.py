"""From a configuration, or a checkpoint that carries one, to objects."""

from __future__ import annotations

import zipfile
from argparse import ArgumentError
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser

from rlzoo.errors import UserError, one_line
from rlzoo.models.base import Policy
from rlzoo.strategies.deepspeed.checkpoints import checkpoint_file


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file of a run, read and found to be one.

    Attributes:
        path: Where it was read from.
        content: What Lightning wrote.
        config: The run's configuration.
    """

    path: str
    content: dict[str, Any]
    config: dict[str, Any]

    def weights(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the weights whose names begin with a prefix, without it."""
        found = self.content["state_dict"].items()
        return {k.removeprefix(prefix): value for k, value in found if k.startswith(prefix)}

    @property
    def iterations(self) -> int:
        """Iterations finished when it was written."""
        return int(self.content["rlzoo"]["progress"]["iterations"])


def check_file(ckpt_path: str) -> str:
    """Refuse a path that cannot hold a checkpoint, before anything heavy.

    Returns:
        The file: the path itself, or the one in a sharded checkpoint that holds all weights.

    Raises:
        UserError: If it is not a file, or not of the format that torch saves.
    """
    ckpt_path = checkpoint_file(ckpt_path)
    if not Path(ckpt_path).is_file():
        raise UserError(f"ckpt_path '{ckpt_path}' is not a file; give a checkpoint of rlzoo fit")
    if not zipfile.is_zipfile(ckpt_path):
        raise UserError(
            f"ckpt_path '{ckpt_path}' is not a checkpoint, or was cut short; give one of rlzoo fit"
        )
    return ckpt_path


def read_checkpoint(ckpt_path: str) -> Checkpoint:
    """Read a checkpoint of ``rlzoo fit``, or of a Trainer that fitted an ``RLModule``.

    Raises:
        UserError: If the file is missing or was not written by rlzoo.
    """
    ckpt_path = check_file(ckpt_path)
    content = torch.load(ckpt_path, map_location="cpu", weights_only=True)
    if not content.get("rlzoo", {}).get("config"):
        raise UserError(f"ckpt_path '{ckpt_path}' was not written by rlzoo; give one that was")
    return Checkpoint(ckpt_path, content, yaml.safe_load(content["rlzoo"]["config"]))


def policy_of(checkpoint: Checkpoint) -> Policy:
    """Return the policy of a checkpoint, with its trained weights.

    Raises:
        UserError: If it cannot be built, or the weights do not fit.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--policy", type=Policy)
    try:
        known = parser.parse_object({"policy": checkpoint.config["model"]["policy"]})
        policy: Policy = parser.instantiate(known).policy
    except (KeyError, ArgumentError) as error:
        raise _cannot(checkpoint, error) from error
    return with_weights(policy, checkpoint)


def with_weights(policy: Policy, checkpoint: Checkpoint) -> Policy:
    """Load a policy and give it a checkpoint's weights.

    Raises:
        UserError: If they do not fit.
    """
    policy.load()
    weights = checkpoint.weights("policy.")
    _, unexpected = policy.load_state_dict(weights, strict=False)
    missing = {n for n, p in policy.named_parameters() if p.requires_grad} - weights.keys()
    if unexpected or missing:
        path, names = checkpoint.path, unexpected or missing
        raise UserError(f"ckpt_path '{path}' does not fit its policy: {names}")
    return policy


def build(sections: Mapping[str, type], config: Mapping[str, Any]) -> Any:
    """Instantiate sections of a configuration; no weights are loaded.

    Args:
        sections: Names such as ``model``, and the class that each configures.
        config: The configuration, which may have other sections too.

    Returns:
        A namespace with an object per section.

    Raises:
        ArgumentError: If a section names what is not there.
        KeyError: If there is no such section.
        UserError: If a class refuses its settings.
    """
    parser = ArgumentParser(exit_on_error=False)
    for name, cls in sections.items():
        parser.add_class_arguments(cls, name)
    return parser.instantiate(parser.parse_object({name: config[name] for name in sections}))


def rebuilt(checkpoint: Checkpoint, **sections: type) -> Any:
    """Instantiate sections of a checkpoint's configuration.

    Args:
        checkpoint: As read.
        **sections: See `build`.

    Raises:
        UserError: If the configuration lacks one, or names what is not there.
    """
    left_out = checkpoint.content["rlzoo"].get("left_out", {})
    for key, what in left_out.items():
        if key.partition(".")[0] in sections:
            raise UserError(
                f"ckpt_path '{checkpoint.path}' does not say {key}, which was {what}; make it a "
                "class, or functools.partial of one, and train again"
            )
    if missing := sections.keys() - checkpoint.config.keys():
        raise UserError(
            f"ckpt_path '{checkpoint.path}' says nothing of its {missing.pop()}; train with "
            "PromptDataModule"
        )
    try:
        return build(sections, checkpoint.config)
    except (KeyError, ArgumentError) as error:
        raise _cannot(checkpoint, error) from error


def _cannot(checkpoint: Checkpoint, error: BaseException) -> UserError:
    return UserError(f"ckpt_path '{checkpoint.path}' cannot be rebuilt here: {one_line(error)}")
