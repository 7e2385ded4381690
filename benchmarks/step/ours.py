"""The side of rlzoo: python -m benchmarks.step.ours WORK.json RESULT.json."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from benchmarks.step.workload import Meter, Work
from rlzoo.algorithms import discover
from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.rewards.base import Reward, Sample
from rlzoo.rollout import NativeSampler
from rlzoo.tasks.json_lines import JsonLines
from rlzoo.training.data import PromptDataModule
from rlzoo.training.module import RLModule
from rlzoo.types import Rollouts, SamplingParams

DTYPES: dict[str, Any] = {"fp32": "float32", "autocast": "float32", "bf16": "bfloat16"}


class ForcedLengths(NativeSampler):
    """Ends answers where the workload says, whatever their tokens."""

    def __init__(self, work: Work, meter: Meter) -> None:
        super().__init__()
        self.work, self.meter = work, meter
        self.lengths = torch.zeros(0)

    def sample(self, *args: Any, **kwargs: Any) -> Rollouts:
        """Draw answers of the lengths of this cycle."""
        self.meter.begin()
        self.lengths = torch.from_numpy(self.work.lengths(len(self.meter.cycles) - 1))
        with self.meter.span("generation"):
            rollouts = super().sample(*args, **kwargs)
        self.meter.tokens.append(int(rollouts.mask.sum()))
        return rollouts

    def ends(self, tokens: Tensor, eos: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        """Read the table."""
        return counts >= self.lengths[rows]


class AnyReward(Reward):
    """A number that differs between the answers to a prompt."""

    def reward(self, sample: Sample) -> float:
        """Score by what costs nothing."""
        return float(len(sample.completion) % 5)


class Measured(RLModule):
    """The module as it is, with a clock around its parts."""

    meter: Meter

    def take_step(self, *args: Any, **kwargs: Any) -> None:
        """Take a measured step."""
        with self.meter.span("training"):
            super().take_step(*args, **kwargs)

    def on_train_batch_end(self, *args: Any) -> None:
        """End the cycle."""
        self.meter.end()


def run(work: Work) -> dict[str, Any]:
    """Train on the workload and return what it took."""
    torch.set_num_threads(work.threads)
    meter = Meter()
    config = json.loads((Path(work.folder) / "config.json").read_text())
    kind = MoEPolicy if "moe" in config["model_type"] else DensePolicy
    rows = str(Path(work.folder) / "prompts.jsonl")
    module = Measured(
        policy=kind(
            path=work.folder,
            dtype=DTYPES[work.precision],
            gradient_checkpointing=work.checkpointing,
        ),
        rewards=[AnyReward()],
        algorithm=discover()[work.algorithm](),
        sampler=ForcedLengths(work, meter),
        sampling=SamplingParams(work.new_tokens),
        group_size=work.group,
        minibatches=work.minibatches,
        micro_batch_tokens=work.micro_tokens,
        optimizer=partial(torch.optim.AdamW, lr=1e-6),
        self_check_tolerance=1.0,
        seed=work.seed,
    )
    module.meter = meter
    experience = module.learner.experience

    def measured(*args: Any, **kwargs: Any) -> Any:
        with meter.span("scoring"):
            return experience(*args, **kwargs)

    module.learner.experience = measured  # type: ignore[method-assign]
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        precision="bf16-mixed" if work.precision == "autocast" else "32-true",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        limit_train_batches=work.cycles + 1,
    )
    data = PromptDataModule(
        JsonLines(rows, eval_path=rows), prompts_per_iteration=work.prompts, eval_size=None
    )
    trainer.fit(module, data)
    return meter.result()


if __name__ == "__main__":
    logging.getLogger("lightning").setLevel(logging.WARNING)
    Path(sys.argv[2]).write_text(json.dumps(run(Work.read(sys.argv[1]))))
