"""Measure what watching, replaying and balancing the routing of a mixture of experts costs.

python -m benchmarks.replay [--hidden 64] [--layers 2] [--experts 8] [--top_k 2] [--prompts 32]
                            [--tokens 16] [--rounds 7] [--checkpointing]

Every variant runs one iteration per round, in turn: P prompts x 8 answers, 4 minibatches. Figures
are medians over rounds of this process's CPU time on one thread, so that other work on the machine
matters little.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import torch

from rlzoo.algorithms.grpo import GRPO
from rlzoo.models import MoEPolicy
from rlzoo.rollout import NativeSampler
from rlzoo.training.learner import Learner
from rlzoo.training.settings import Settings
from rlzoo.types import Prompt, Prompts, Rewards, SamplingParams
from rlzoo.types.stats import Stats

GROUP, MINIBATCHES = 8, 4
VARIANTS: dict[str, dict[str, Any]] = {
    "nothing watched": {"statistics": False},
    "statistics (the default)": {},
    "replay old-policy": {"replay": "old-policy"},
    "replay rollout": {"replay": "rollout"},
    "balance loss": {"aux_coefficient": 0.01},
}


def learner_of(given: argparse.Namespace, settings: dict[str, Any]) -> Learner:
    """Return a learner with a model of its own."""
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": given.hidden,
        "moe_intermediate_size": given.hidden * 3 // 2,
        "num_experts": given.experts,
        "num_experts_per_tok": given.top_k,
        "num_hidden_layers": given.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": given.hidden // 4,
        "tie_word_embeddings": True,
    }
    policy = MoEPolicy(config=config, gradient_checkpointing=given.checkpointing, **settings)
    policy.load()
    of_run = Settings(
        policy=policy,
        rewards=[],
        algorithm=GRPO(),
        aggregation="token-mean",
        minibatches=MINIBATCHES,
    )
    return Learner(of_run)


def iterate(learner: Learner, prompts: Prompts, tokens: int, seed: int) -> dict[str, float]:
    """Run one iteration; return the seconds of each stage and the size of the record."""
    optimizer = torch.optim.AdamW(learner.settings.policy.parameters(), lr=1e-4)
    stats, marks = Stats(), [time.process_time()]
    params = SamplingParams(max_new_tokens=tokens)
    rollouts = NativeSampler().sample(learner.settings.policy, prompts, GROUP, params, seed)
    marks.append(time.process_time())
    totals = torch.rand(len(rollouts), generator=torch.Generator().manual_seed(seed))
    table: list[list[float | None]] = [[float(total)] for total in totals]
    rewards = Rewards(table, totals, torch.ones(len(rollouts)).bool(), (1.0,))
    experience = learner.experience(rollouts, rewards, seed, stats)
    marks.append(time.process_time())
    for update, minibatch in enumerate(learner.cut(experience, seed)):
        for micro in minibatch.micro_batches:
            loss = learner.loss(experience, minibatch, micro, stats, on_policy=update == 0)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    metrics = learner.adapt({}, len(rollouts))
    marks.append(time.process_time())
    spent = [after - before for before, after in itertools.pairwise(marks)]
    found = dict(zip(("rollout", "scoring", "training"), spent, strict=True))
    return found | {"total": sum(spent), "bytes": metrics.get("moe/record_bytes", 0.0)}


def main() -> None:
    """Print a Markdown table, one row per variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"hidden": 64, "layers": 2, "experts": 8, "top_k": 2, "prompts": 32, "tokens": 16}
    for name, default in {**sizes, "rounds": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--checkpointing", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 60, (given.prompts, 8), generator=generator).tolist()
    prompts = Prompts(tuple(Prompt(tuple(x), "") for x in ids), tuple(range(given.prompts)))
    learners = {name: learner_of(given, settings) for name, settings in VARIANTS.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for seed in range(given.rounds + 1):
        for name, learner in learners.items():
            found = iterate(learner, prompts, given.tokens, seed)
            if seed:  # the first warms up
                rounds[name].append(found)
    print("| | rollout, s | scoring, s | training, s | iteration, s | against nothing | record |")
    print("|---|---|---|---|---|---|---|")
    base = None
    for name, runs in rounds.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        base = base or middle["total"]
        stages = " | ".join(f"{middle[k]:.3f}" for k in ("rollout", "scoring", "training"))
        more = f"{100 * (middle['total'] / base - 1):+.1f} %"
        size = f"{middle['bytes'] / 1024:.0f} KiB"
        print(f"| {name} | {stages} | {middle['total']:.3f} | {more} | {size} |")


if __name__ == "__main__":
    main()
