"""Cold start: a short supervised fit on demonstrations, done once and kept in a cache."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from rlzoo import distributed
from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.models.loading.files import cache_folder
from rlzoo.strategies.master_weights import with_masters
from rlzoo.strategies.stepping import take_update
from rlzoo.tasks.base import Example, Task
from rlzoo.tasks.tabular import TabularTask
from rlzoo.types import Sequences

log = logging.getLogger("rlzoo")


def _examples(task: Task, size: int, seed: int) -> Sequence[Example]:
    # A table has the rows it has; they are used again once all were.
    return task.examples("train", None if isinstance(task, TabularTask) else size, seed)


class ColdStart(Recorded):
    """Teaches a policy a task's form by imitation, so that RL has something to reward.

    Demonstrations are deliberately noisy: a policy that *can* solve the task but does not do so
    *reliably* leaves room for RL, while a clean fit stopped early is limited in what it can do.
    The result is cached under a key of all that determines it (initial weights, tokenizer, task,
    settings, versions), so every objective and seed starts from the same weights.

    Args:
        steps: Optimizer steps.
        batch_size: Demonstrations per step.
        learning_rate: AdamW's, constant: decaying it ends in a sharp minimum that RL steps out of.
        noise: Probability that a character of a demonstration is replaced by a random one.
        seed: Seed of demonstrations and noise.
    """

    def __init__(
        self,
        steps: int = 300,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
        noise: float = 0.13,
        seed: int = 0,
    ) -> None:
        if steps < 1 or batch_size < 1:
            raise UserError(f"cold_start: steps {steps} and batch_size {batch_size} must be >= 1")
        if not 0 <= noise <= 1:
            raise UserError(f"cold_start.noise must be in [0, 1], got {noise}")
        self.settings: dict[str, Any] = {
            "steps": steps,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "noise": noise,
            "seed": seed,
        }

    def apply(self, policy: Policy, task: Task) -> None:
        """Give a loaded policy its cold start, from the cache if it is there.

        Rank 0 fits or reads; every other rank receives the result.

        Args:
            policy: A policy after ``load()``.
            task: Where demonstrations come from.
        """
        weights = None
        if distributed.rank() == 0:
            path = cache_folder() / "cold_start" / f"{self.key(policy, task)}.safetensors"
            if path.exists():
                log.info("cold start: reusing %s", path.name)
                weights = load_file(path)
            else:
                self.fit(policy, task)
                weights = {k: value.cpu() for k, value in policy.trainable_state().items()}
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(f".{os.getpid()}")
                save_file(weights, unfinished)
                unfinished.replace(path)
        policy.load_trainable_state(distributed.broadcast_object(weights))

    def key(self, policy: Policy, task: Task) -> str:
        """Return a hash of all that determines the result."""
        digest = hashlib.sha256()
        rows = _examples(task, 32, self.settings["seed"])
        noise = self.settings["noise"]
        settings = {k: str(v) for k, v in vars(task).items() if not k.startswith("_")}
        facts = {
            "settings": self.settings,
            "task": [type(task).__qualname__, settings],
            "examples": [[str(row.prompt), row.target] for row in rows],
            "demonstrations": [task.demonstration(r, noise, random.Random(0)) for r in rows[:32]],
            "ids": [policy.encode(row.prompt) for row in rows[:32]],
            "model": policy.source.hf_config.to_json_string(),
            "versions": [torch.__version__, transformers.__version__],
            "recipe": Path(__file__).read_text(),
        }
        digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
        for name, value in policy.trainable_state().items():
            digest.update(name.encode())
            digest.update(value.float().cpu().numpy().tobytes())
        return digest.hexdigest()[:20]

    def fit(self, policy: Policy, task: Task) -> None:
        """Run the supervised fit.

        ``loss = - mean_t log_probs_t`` over answer tokens and EOS.
        """
        s = self.settings
        steps, batch = s["steps"], s["batch_size"]
        examples = _examples(task, steps * batch, s["seed"])
        rng = random.Random(s["seed"])
        parameters = [p for p in policy.parameters() if p.requires_grad]
        make = partial(torch.optim.AdamW, lr=s["learning_rate"])
        optimizer = with_masters(make, [{"params": parameters}])
        policy.training_mode()
        started = time.perf_counter()
        for step in range(steps):
            chosen = [examples[(step * batch + i) % len(examples)] for i in range(batch)]
            sequences = self._sequences(policy, task, chosen, rng)
            loss = -policy.log_probs(sequences).log_probs.sum() / sequences.mask.sum()
            take_update(policy, optimizer, [lambda: loss], 1.0)  # noqa: B023 - called at once
            if (step + 1) % max(1, steps // 6) == 0:
                spent = time.perf_counter() - started
                log.info("cold start %d/%d  loss %.3f  %.1f s", step + 1, steps, float(loss), spent)

    def _sequences(
        self, policy: Policy, task: Task, examples: list[Example], rng: random.Random
    ) -> Sequences:
        eos = policy.tokenizer.eos_token_id
        prompts = [policy.encode(example.prompt) for example in examples]
        texts = [task.demonstration(example, self.settings["noise"], rng) for example in examples]
        answers = [
            [*ids, eos] for ids in policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
        ]
        width = max(len(answer) for answer in answers)
        total = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        input_ids = torch.zeros(len(examples), total, dtype=torch.long)
        mask = torch.zeros(len(examples), width, dtype=torch.bool)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            input_ids[i, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
            mask[i, : len(answer)] = True
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        device = policy.device
        return Sequences(input_ids.to(device), lengths.to(device), mask.to(device))
