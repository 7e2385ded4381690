"""Folders of made-up runs, shaped like those that a comparison leaves behind."""

import hashlib
import json
import math

import numpy as np

VARIANTS = ("GRPO", "CISPO", "GSPO-clip_low0.003", "PPO")
SEEDS = (0, 1, 2)
ITERATIONS = 40
FAILED, HALF = ("PPO", 2), ("CISPO", 1)
BUCKETS = (("1_7", 4.0), ("8_31", 19.5), ("32_up", 48.0))  # name and middle


def accuracy(variant, seed, iteration):
    """Return held-out accuracy: a common curve, a seed's luck, and GSPO behind by 0.05."""
    rng = np.random.default_rng([seed, iteration])
    top = 0.90 + 0.01 * seed - (0.05 if variant.startswith("GSPO") else 0.0)
    own = np.random.default_rng([VARIANTS.index(variant), seed, iteration]).normal(0, 0.0008)
    return 0.36 + (top - 0.36) * (1 - math.exp(-iteration / 7)) + rng.normal(0, 0.005) + own


def line(variant, seed, iteration):
    """Return the metrics of one iteration."""
    rng = np.random.default_rng([VARIANTS.index(variant), seed, iteration, 7])
    gspo = variant.startswith("GSPO")
    noise = lambda scale: float(rng.normal(0, scale))  # noqa: E731
    std = 0.025 * math.exp(noise(0.15)) * (1 + iteration / 80)
    values = {
        "iteration": iteration,
        "reward/mean": accuracy(variant, seed, iteration) - 0.03 + noise(0.02),
        "policy/clip_fraction": (0.14 if gspo else 0.003) * math.exp(noise(0.2)),
        "policy/clipped_answers": (0.14 if gspo else 0.0) * math.exp(noise(0.2)),
        "policy/log_prob": -0.5 * math.exp(-iteration / 30) + noise(0.01),
        "policy/token_log_ratio_std": std,
        "policy/sequence_log_ratio_std": std / 2.7,
        "optim/grad_norm": 0.4 * math.exp(noise(0.3)),
        "optim/skipped": 0.0,
        "rollout/length": 7.4 + noise(0.1),
        "tokens/total": 3780 * iteration + 10 * seed * iteration,
        "time/rollout_s": 0.12 + abs(noise(0.01)),
        "time/rewards_s": 0.004,
        "time/log_probs_s": 0.03,
        "time/training_s": 0.16 + (0.1 if variant == "PPO" else 0.0) + abs(noise(0.01)),
    }
    for bucket, length in BUCKETS:
        values[f"policy/spread/token_{bucket}"] = std * math.exp(noise(0.1))
        values[f"policy/spread/sequence_{bucket}"] = std / math.sqrt(length)
    values["time/iteration_s"] = sum(values[k] for k in values if k.startswith("time/")) + 0.01
    if variant == "PPO":
        values["policy/entropy"] = 0.45 * math.exp(-iteration / 30)
    return values


def write_run(root, variant, seed, *, reached=ITERATIONS, status="done", every=10, **record):
    """Write one run's folder.

    Args:
        root: The comparison's folder.
        variant: One of VARIANTS.
        seed: Its seed.
        reached: Iterations with a line.
        status: As in run.json; a run that is not done has no summary.
        every: Iterations between evaluations.
        record: More of run.json.
    """
    slug = f"{variant}-seed{seed}"
    folder = root / "runs" / slug
    folder.mkdir(parents=True)
    algorithm = variant.split("-")[0]
    entry = {"slug": slug, "variant": variant, "algorithm": algorithm, "seed": seed, "axes": {}}
    entry |= {"status": status, "seconds": 41.5, **record}
    (folder / "run.json").write_text(json.dumps(entry))
    held_out, rows = [], []
    for i in range(reached + 1):
        if i:
            rows.append(line(variant, seed, i))
        if i % every == 0:
            held_out.append({"iteration": i, "val/accuracy": accuracy(variant, seed, i)})
            rows.append(held_out[-1])
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if status != "done":
        (folder / "metrics.jsonl").write_text(text + '{"iteration": 18, "rew')
        return entry
    (folder / "metrics.jsonl").write_text(text)
    summary = {"algorithm": algorithm, "seed": seed, "iterations": reached, "updates": 4 * reached}
    summary |= {"tokens": 3780 * reached, "seconds": 14.2, "held_out": held_out}
    summary |= {
        "config_hash": hashlib.sha256(slug.encode()).hexdigest()[:16],
        "versions": {"torch": "2.13.0"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return entry


def write_all(root):
    """Write 4 variants with 3 seeds; one run failed at once, one was killed half way."""
    runs = []
    for seed in SEEDS:
        for variant in VARIANTS:
            if (variant, seed) == FAILED:
                error = "RuntimeError: <oom> & co"
                run = write_run(root, variant, seed, reached=0, status="failed", error=error)
            elif (variant, seed) == HALF:
                run = write_run(root, variant, seed, reached=17, status="killed")
            else:
                run = write_run(root, variant, seed)
            runs.append(run)
    groups = [
        {
            "seed": seed,
            "axes": {},
            "identical": True,
            "hashes": {f"{variant}-seed{seed}": f"c0ffee{seed:02d}" for variant in VARIANTS},
        }
        for seed in SEEDS
    ]
    plan = {
        "base": "configs/quickstart.yaml",
        "algorithms": [
            {"name": "GRPO", "label": "GRPO", "settings": {}, "overrides": {}},
            {"name": "GSPO", "label": "GSPO-clip_low0.003", "settings": {"clip_low": 0.003}},
        ],
        "seeds": list(SEEDS),
        "iterations": ITERATIONS,
        "axes": {},
        "overrides": {"threads": 1},
        "runs": runs,
        "first_rollouts": {"identical": True, "groups": groups},
    }
    (root / "compare.json").write_text(json.dumps(plan))
    return root
