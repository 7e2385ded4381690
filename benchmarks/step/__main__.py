"""Measure a training step of rlzoo, and of TRL on the same work in the same call.

python -m benchmarks.step --model smollm2|dense|moe [--algorithm GRPO] [--minibatches 1|4]
    [--precision fp32|autocast|bf16] [--peer trl [--peer_setting best|default|fp32]]
    [--vocabulary 512] [--prompts 4] [--group 8] [--prompt_tokens 64] [--new_tokens 128]
    [--median 56] [--micro_tokens 1024] [--checkpointing] [--repeats N] [--cycles N] [--threads 1]
    [--json FILE]

`bf16` is `policy.dtype: bfloat16`, whose float32 values are trained; `autocast` is `bf16-mixed`.

Every repeat starts each side anew, in turn, in a process of its own, which trains one short
iteration that is not counted and then `cycles` whole ones. Figures are the minimum and the median
over all counted iterations. CPU-seconds are those of the process; with one thread they are what the
step takes on a core that nobody else uses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.step.workload import MODELS, Work

OF_PEER = ("GRPO", "DAPO", "CISPO", "GSPO")
PARTS = ("generation", "scoring", "training", "step")


def side(module: str, work: Work, folder: Path) -> dict[str, Any]:
    """Run one side in its own process."""
    task, result = folder / "work.json", folder / "result.json"
    work.write(task)
    done = subprocess.run(
        [sys.executable, "-m", module, str(task), str(result)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the repeats of a side."""
    cycles = [cycle for run in runs for cycle in run["cycles"]]
    tokens = [count for run in runs for count in run["tokens"]]
    found: dict[str, Any] = {"cycles": len(cycles), "tokens": tokens[0]}
    for part in PARTS:
        for i, kind in enumerate(("seconds", "cpu")):
            values = [cycle.get(part, [0.0, 0.0])[i] for cycle in cycles]
            found[f"{part}_{kind}"] = {"min": min(values), "median": statistics.median(values)}
    for part in ("generation", "step"):
        rate = tokens[0] / found[f"{part}_cpu"]["median"]
        found[f"{part}_tokens_per_cpu_s"] = rate
    found["peak_mb"] = max(run["peak_mb"] for run in runs)
    return found


def ratios(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """Divide the peer's figures by ours."""
    found = {"memory": peer["peak_mb"] / ours["peak_mb"]}
    for part in ("generation", "training", "step"):
        for kind in ("cpu", "seconds"):
            for of in ("median", "min"):
                name = f"{part}_{kind}" + ("" if of == "median" else "_min")
                one, two = peer[f"{part}_{kind}"][of], ours[f"{part}_{kind}"][of]
                found[name] = one / two
    return found


def show(found: dict[str, Any]) -> None:
    """Print the figures of both sides."""
    print(f"{'':12}{'cycles':>7}" + "".join(f"{p + ' s':>14}{p + ' cpu-s':>18}" for p in PARTS))
    for name in ("rlzoo", "peer"):
        if name in found:
            one = found[name]
            cells = "".join(
                f"{one[p + '_seconds']['min']:>7.2f}{one[p + '_seconds']['median']:>7.2f}"
                f"{one[p + '_cpu']['min']:>9.2f}{one[p + '_cpu']['median']:>9.2f}"
                for p in PARTS
            )
            print(f"{name:12}{one['cycles']:>7}{cells}")
    for name in ("rlzoo", "peer"):
        if name in found:
            one = found[name]
            print(
                f"{name}: {one['tokens']} tokens, {one['generation_tokens_per_cpu_s']:.0f} sampled "
                f"and {one['step_tokens_per_cpu_s']:.0f} trained per CPU-second, peak "
                f"{one['peak_mb']:.0f} MB"
            )
    if "ratio" in found:
        print("peer / rlzoo: " + ", ".join(f"{k} {v:.2f}" for k, v in found["ratio"].items()))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Prepare the work and run the sides in turn."""
    sides = {"rlzoo": "benchmarks.step.ours"}
    if given.peer:
        sides["peer"] = "benchmarks.step.peer"
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = given.prompts * (given.cycles + 1)
        # In a process of its own, whose memory nobody counts.
        code = f"prepare({given.model!r}, {given.vocabulary}, {given.prompt_tokens}, "
        code += f"Path({str(folder / 'model')!r}), {rows})"
        code = f"from pathlib import Path; from benchmarks.step.workload import prepare; {code}"
        subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
        work = Work(
            folder=str(folder / "model"),
            algorithm=given.algorithm,
            minibatches=given.minibatches,
            precision=given.precision,
            prompts=given.prompts,
            group=given.group,
            new_tokens=given.new_tokens,
            median=given.median,
            cycles=given.cycles,
            micro_tokens=given.micro_tokens,
            checkpointing=given.checkpointing,
            threads=given.threads,
        )
        for _ in range(given.repeats):
            for name, module in sides.items():
                own = replace(work, precision=given.peer_setting) if name == "peer" else work
                runs[name].append(side(module, own, folder))
    found: dict[str, Any] = {"model": given.model, "vocabulary": given.vocabulary}
    found |= {"work": {k: v for k, v in asdict(work).items() if k != "folder"}}
    found |= {name: summary(of) for name, of in runs.items()}
    if given.peer:
        found["peer_setting"] = given.peer_setting
        found["ratio"] = ratios(found["rlzoo"], found["peer"])
    return found


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--model", choices=MODELS, default="dense")
    options.add_argument("--algorithm", default="GRPO")
    options.add_argument("--precision", choices=("fp32", "autocast", "bf16"), default="fp32")
    options.add_argument("--peer", choices=("trl",))
    options.add_argument("--peer_setting", choices=("best", "default", "fp32"), default="best")
    options.add_argument("--checkpointing", action="store_true", help="on the side of rlzoo")
    options.add_argument("--json", help="write the figures to this file")
    defaults = {"minibatches": 1, "vocabulary": 512, "prompts": 4, "group": 8, "threads": 1}
    defaults |= {"prompt_tokens": 64, "new_tokens": 128, "median": 56, "micro_tokens": 1024}
    for name, value in (defaults | {"repeats": 3, "cycles": 2}).items():
        options.add_argument(f"--{name}", type=int, default=value)
    return options


def main() -> None:
    """Measure, print, and write JSON."""
    options = parser()
    given = options.parse_args()
    if given.peer and given.algorithm not in OF_PEER:
        options.error(f"--algorithm {given.algorithm}: TRL has {', '.join(OF_PEER)}")
    found = measure(given)
    show(found)
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
