"""Train the quickstart with every objective and seed, and print what each reached.

python -m benchmarks.quickstart [--config configs/quickstart.yaml] [--algorithms GRPO,GSPO]
                                [--seeds 0,1,2] [--jobs 1] [--output_dir runs/benchmark]
                                [--set model.minibatches=1] [--json docs/results.json]

Runs that are already in the output folder are read and not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlzoo.algorithms import discover


def train(
    config: str, algorithm: str, seed: int, folder: Path, settings: list[str]
) -> dict[str, Any]:
    """Run one training in a process of its own and return its summary."""
    name = f"{algorithm}-{seed}"
    path = folder / name / "version_0" / "summary.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    command = [sys.executable, "-m", "rlzoo", "fit", "--config", config]
    command += ["--model.algorithm", algorithm, "--seed_everything", str(seed)]
    command += ["--trainer.logger.save_dir", str(folder), "--trainer.logger.name", name]
    command += ["--trainer.logger.version", "0"]
    command += [f"--{setting}" for setting in settings]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary


def main() -> None:
    """Print a Markdown table, one row per objective."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--algorithms", default=",".join(discover()))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output_dir", default="runs/benchmark")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", help="add what each seed reached to this file")
    given = parser.parse_args()
    names, seeds = given.algorithms.split(","), [int(seed) for seed in given.seeds.split(",")]
    folder = Path(given.output_dir) / Path(given.config).stem
    # Alone, so that the others find its cold start.
    train(given.config, names[0], seeds[0], folder, given.set)
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = {
            (name, seed): pool.submit(train, given.config, name, seed, folder, given.set)
            for name in names
            for seed in seeds
        }
        found = {key: run.result() for key, run in runs.items()}
    if given.json:
        reached = {
            name: {str(seed): found[name, seed]["accuracy_after"] for seed in seeds}
            for name in names
        }
        path = Path(given.json)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | reached, indent=1) + "\n")
    print(f"| objective | before | after, seeds {given.seeds} | mean | greedy, mean |")
    print("|---|---|---|---|---|")
    for name in names:
        of_name = [found[name, seed] for seed in seeds]
        after = [run["accuracy_after"] for run in of_name]
        before = statistics.mean(run["accuracy_before"] for run in of_name)
        greedy = statistics.mean(run["greedy_after"] for run in of_name)
        each = " / ".join(f"{a:.3f}" for a in after)
        mean = statistics.mean(after)
        print(f"| {name} | {before:.3f} | {each} | {mean:.3f} | {greedy:.3f} |")


if __name__ == "__main__":
    main()
