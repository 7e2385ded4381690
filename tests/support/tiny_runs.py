"""Runs of the command line in this process, on a policy of two thousand weights."""

import contextlib
import copy
import io
import logging
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

from rlzoo.cli import main
from rlzoo.cli.commands.fit import RLCLI
from rlzoo.models.weights import Weights

QWEN = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
BASE: dict[str, Any] = {
    "seed_everything": 0,
    "threads": 1,
    "trainer": {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        "num_sanity_val_steps": -1,
        "logger": {
            "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
            "init_args": {"save_dir": "runs", "name": "tiny"},
        },
    },
    "model": {
        "policy": {
            "class_path": "DensePolicy",
            "init_args": {"config": QWEN, "characters": "0123456789S="},
        },
        "rewards": [{"class_path": "ExactMatch"}],
        "sampling": {"max_new_tokens": 4},
        "evaluation": {"samples": 2},
        "group_size": 4,
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.003}},
    },
    "data": {
        "task": {
            "class_path": "DigitSorting",
            "init_args": {"min_digits": 2, "max_digits": 4},
        },
        "prompts_per_iteration": 4,
        "train_size": 8,
        "eval_size": 6,
        "eval_batch_size": 4,
    },
}
REMOVE = object()


def configuration(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The small run, with values put at dotted keys."""
    config = copy.deepcopy(BASE)
    for key, value in (changes or {}).items():
        *path, last = key.split(".")
        place = config
        for name in path:
            place = place.setdefault(name, {})
        if value is REMOVE:
            del place[last]
        else:
            place[last] = value
    return config


def reward(function: str, **options: Any) -> dict[str, Any]:
    """A reward of reward_functions.py."""
    return {
        "class_path": "FunctionReward",
        "init_args": {"function": f"reward_functions.{function}", **options},
    }


@dataclass
class Run:
    code: int
    out: str
    err: str
    cwd: Path
    cli: list[Any] = field(default_factory=list)

    @property
    def module(self) -> Any:
        return self.cli[-1].model

    @property
    def trainer(self) -> Any:
        return self.cli[-1].trainer

    @property
    def folder(self) -> Path:
        return self.cwd / self.trainer.log_dir

    def checkpoint(self, iteration: int) -> Path:
        return self.folder / "checkpoints" / f"iteration-{iteration:06d}.ckpt"

    def load(self, iteration: int) -> dict[str, Any]:
        return torch.load(self.checkpoint(iteration), weights_only=True)

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        return curves_of(self.folder)

    def weights(self) -> dict[str, torch.Tensor]:
        return {k: v.detach().clone() for k, v in self.module.state_dict().items()}


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Everything that TensorBoard shows of a run: (step, value) under each tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


@contextlib.contextmanager
def kept_process_state():
    """Put back what a run changes in its process."""
    root = logging.getLogger()
    handlers, path, argv, cwd = root.handlers[:], sys.path[:], sys.argv, os.getcwd()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with mock.patch.dict(os.environ):
        root.handlers[:] = []  # so that the run's own handler writes to its stderr
        try:
            yield
        finally:
            root.handlers[:] = handlers
            sys.path[:], sys.argv = path, argv
            os.chdir(cwd)
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])


def rlzoo(cwd: Path, *args: str, weights: bool = True) -> Run:
    """Run the command line.

    Args:
        cwd: Working directory.
        *args: What the user typed.
        weights: Whether the run may load weights; if not, loading them is a failure.
    """
    out, err, seen, code = io.StringIO(), io.StringIO(), [], 0
    instantiate = RLCLI.instantiate_classes

    def record(self: Any) -> None:
        seen.append(self)
        instantiate(self)

    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_process_state())
        os.chdir(cwd)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(RLCLI, "instantiate_classes", record))
        if not weights:
            stack.enter_context(
                mock.patch.object(Weights, "load", side_effect=AssertionError("weights loaded"))
            )
        try:
            main.main(list(args))
        except SystemExit as error:
            code = int(error.code or 0)
    return Run(code, out.getvalue(), err.getvalue(), cwd, seen)


def fit(cwd: Path, changes: dict[str, Any] | None = None, *args: str, **options: Any) -> Run:
    """Write the small configuration, changed, to a file and train with it."""
    file = cwd / "config.yaml"
    file.write_text(yaml.safe_dump(configuration(changes)))
    return rlzoo(cwd, "fit", "--config", str(file), *args, **options)


def jsonl(path: Path, *rows: str) -> str:
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)
