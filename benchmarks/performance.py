"""Measure everything that docs/performance.md shows, and write it.

python -m benchmarks.performance [--only smollm2_bf16_best_1,scaling] [--again]

What docs/performance/ has already is not measured anew unless asked for. Takes hours where the
machine is shared; nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.render import DOCS

SMOLLM2 = "--model smollm2 --peer trl --repeats 1"
BEST = f"{SMOLLM2} --precision bf16 --peer_setting best"
DEFAULT = f"{SMOLLM2} --precision bf16 --peer_setting default"
KEPT = "--micro_tokens 256"
RECOMPUTED = "--micro_tokens 512 --checkpointing"
TINY = "--peer trl --repeats 3 --cycles 3"
STEPS = {
    "smollm2_bf16_best_1": f"{BEST} {RECOMPUTED}",
    "smollm2_bf16_best_1_kept": f"{BEST} {KEPT}",
    "smollm2_bf16_best_4": f"{BEST} {RECOMPUTED} --minibatches 4",
    "smollm2_bf16_default_1": f"{DEFAULT} {RECOMPUTED}",
    "smollm2_bf16_default_4": f"{DEFAULT} {RECOMPUTED} --minibatches 4",
    "smollm2_bf16_default_4_kept": f"{DEFAULT} {KEPT} --minibatches 4",
    "smollm2_fp32_1": f"{SMOLLM2} --peer_setting fp32 {RECOMPUTED}",
    "dense_1": f"{TINY} --peer_setting fp32",
    "dense_4": f"{TINY} --peer_setting fp32 --minibatches 4",
    "dense_vocabulary": "--peer trl --peer_setting fp32 --repeats 1 --vocabulary 151936",
    "moe_1": f"{TINY} --model moe --peer_setting fp32",
    "moe_4": f"{TINY} --model moe --peer_setting fp32 --minibatches 4",
}


def main() -> None:
    """Measure what is missing, then write the page."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default=",".join([*STEPS, "scaling"]))
    options.add_argument("--again", action="store_true")
    given = options.parse_args()
    folder = DOCS / "performance"
    folder.mkdir(exist_ok=True)
    for name in given.only.split(","):
        if name == "scaling":
            path, command = folder / "scaling.json", "benchmarks.scaling"
            extra = ["--picture", str(DOCS / "images" / "scaling.png")]
        else:
            path, command = folder / f"step_{name}.json", "benchmarks.step"
            extra = STEPS[name].split()
        if given.again or not path.exists():
            print(name, flush=True)
            call = [sys.executable, "-m", command, *extra, "--json", str(path)]
            subprocess.run(call, check=True)
    subprocess.run([sys.executable, "-m", "benchmarks.render"], check=True)


if __name__ == "__main__":
    main()
