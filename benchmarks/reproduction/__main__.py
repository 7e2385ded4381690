"""Run the experiments behind docs/reproduction.md and write it.

python -m benchmarks.reproduction [--jobs 2] [--only gspo_claims,long_answers] [--page_only]

Runs that are finished are kept, so that a second call goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.reproduction.figures import gather
from benchmarks.reproduction.page import render
from benchmarks.reproduction.pictures import plot_figures

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXPERIMENTS = {
    "claims": "configs/experiments/gspo_claims.yaml",
    "replay": "configs/experiments/moe_replay.yaml",
    "stress": "configs/experiments/off_policy_stress.yaml",
    "long": "configs/experiments/long_answers_compare.yaml",
}


def main() -> None:
    """Run, gather, plot, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="names, with commas")
    parser.add_argument("--page_only", action="store_true", help="write the page, run nothing")
    given = parser.parse_args()
    path = DOCS / "reproduction.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in [] if given.page_only else given.only.split(","):
        file = EXPERIMENTS[name]
        command = [sys.executable, "-m", "rlzoo", "compare", "--config", file]
        subprocess.run([*command, "--jobs", str(given.jobs)], cwd=ROOT, check=True)
        plan = yaml.safe_load((ROOT / file).read_text())
        found[name] = gather(ROOT / plan["output_dir"], file)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    plot_figures(found, DOCS / "images")
    (DOCS / "reproduction.md").write_text(render(found))
    print(f"written: {DOCS / 'reproduction.md'}")


if __name__ == "__main__":
    main()
