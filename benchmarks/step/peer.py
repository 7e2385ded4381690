"""The side of TRL: python -m benchmarks.step.peer WORK.json RESULT.json.

`precision` is a setting of TRL's: best (bfloat16 weights, no gradient checkpointing, the fastest
found on a CPU), default (bfloat16 autocast and gradient checkpointing) or fp32 (the default without
autocast).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList
from trl import GRPOConfig, GRPOTrainer

from benchmarks.step.workload import Meter, Work

LOSSES: dict[str, dict[str, Any]] = {
    "GRPO": {"loss_type": "grpo"},
    "DAPO": {"loss_type": "dapo", "epsilon_high": 0.28},
    "CISPO": {"loss_type": "cispo", "epsilon_high": 5.0},
    "GSPO": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "best": {
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "bfloat16"},
    },
    "default": {"bf16": True, "gradient_checkpointing": True},
    "fp32": {"bf16": False, "gradient_checkpointing": True},
}


class ForcedLengths(LogitsProcessor):
    """Makes EOS certain at the last token of an answer and impossible before."""

    def __init__(self, lengths: torch.Tensor, eos: list[int], prompt: int) -> None:
        self.lengths, self.eos, self.prompt = lengths, eos, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Change the columns of EOS in place."""
        last = self.lengths <= input_ids.shape[1] - self.prompt + 1
        scores[:, self.eos] = -torch.inf
        scores[last] = -torch.inf
        scores[last, self.eos[0]] = 0.0
        return scores


class Measured(GRPOTrainer):
    """TRL's trainer as it is, with a clock around its parts and lengths that are given."""

    work: Work
    meter: Meter

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        lengths = torch.from_numpy(self.work.lengths(len(self.meter.cycles) - 1))
        generate = self.model.generate

        def forced(input_ids: torch.Tensor, **inputs: Any) -> Any:
            force = ForcedLengths(lengths, list(self.eos_token_ids), input_ids.shape[1])
            return generate(
                input_ids=input_ids, logits_processor=LogitsProcessorList([force]), **inputs
            )

        self.model.generate = forced
        try:
            with self.meter.span("generation"):
                made = super()._generate_single_turn(*args, **kwargs)
        finally:
            self.model.generate = generate
        self.meter.tokens.append(sum(len(ids) for ids in made[0]))
        return made

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        self.meter.begin()
        self.preparing = True
        with self.meter.span("prepare"):
            made = super()._generate_and_score_completions(*args, **kwargs)
        self.preparing = False
        return made

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if not self.preparing:
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        with self.meter.span("scoring"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)


def any_reward(completions: list[str], **_: Any) -> list[float]:
    """Give a number that differs between the answers to a prompt."""
    return [float(len(text) % 5) for text in completions]


def run(work: Work) -> dict[str, Any]:
    """Train on the workload and return what it took."""
    torch.set_num_threads(work.threads)
    meter, size = Meter(), work.prompts * work.group
    micro = min(work.micro_rows, size // work.minibatches)
    lines = (Path(work.folder) / "prompts.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=size // work.minibatches // micro,
            steps_per_generation=size // micro,
            num_generations=work.group,
            max_completion_length=work.new_tokens,
            max_steps=work.minibatches * (work.cycles + 1),
            learning_rate=1e-6,
            max_grad_norm=1.0,
            temperature=1.0,
            beta=0.0,
            shuffle_dataset=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=work.seed,
            **LOSSES[work.algorithm],
            **SETTINGS[work.precision],
        )
        trainer = Measured(
            model=work.folder,
            reward_funcs=any_reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(work.folder, padding_side="left"),
        )
        trainer.work, trainer.meter, trainer.preparing = work, meter, False
        trainer.train()
        meter.end()
    result = meter.result()
    for cycle in result["cycles"]:
        cycle["training"] = [
            a - b for a, b in zip(cycle["step"], cycle.pop("prepare"), strict=True)
        ]
    return result


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(Work.read(sys.argv[1]))))
