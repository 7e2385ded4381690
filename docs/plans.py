"""Fill docs/scaling.md with what rlzoo plan prints."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tempfile
from pathlib import Path

from rlzoo.cli import main

ROOT = Path(__file__).parents[1]
BASE = "configs/experiments/gsm8k.yaml"
ROWS = (
    ("qwen3_0.6b", None, 1),
    ("qwen3_8b", "fsdp2", 8),
    ("qwen3_8b", "deepspeed_zero2", 8),
    ("qwen3_8b", "deepspeed_zero3", 8),
    ("qwen3_30b_a3b", "deepspeed_ep_8", 8),
    ("qwen3_30b_a3b", "deepspeed_ep_8_nodes", 64),
    ("mixtral_8x7b", "deepspeed_ep_offload", 8),
    ("mixtral_8x7b", "deepspeed_ep_8_nodes", 64),
)


def planned(words: list[str]) -> str:
    """Return what ``rlzoo plan`` prints, files found from any folder."""
    found = [str(ROOT / word) if word.startswith("configs/") else word for word in words]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main.main(["plan", *found])
    # Importing DeepSpeed where there is no GPU prints a dated warning.
    return re.sub(r"^\[\d{4}-.*\n", "", out.getvalue(), flags=re.M)


def table() -> str:
    """Return a table of models and strategies on H100s, from the plans themselves."""
    lines = ["| model | strategy | devices | GB rollout | GB training | fits 80 GB |"]
    lines[0] += " decoding, tokens/s per device | training, tokens/s per device |"
    lines.append("|---|---|---|---|---|---|---|---|")
    for model, strategy, devices in ROWS:
        layers = [BASE, f"configs/models/{model}.yaml"]
        layers += [f"configs/strategies/{strategy}.yaml"] if strategy else []
        words = [word for layer in layers for word in ("--config", layer)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plan.json"
            planned([*words, "--hardware", "h100", "--json", str(file)])
            plan = json.loads(file.read_text())
        assert plan["sharding"]["world"] == devices, (model, strategy)
        rollout, training = (plan["peaks"][name] / 1e9 for name in ("rollout", "training"))
        decode, train = (bound["tokens_per_s"] for bound in plan["bounds"])
        lines.append(
            f"| {model} | {strategy or 'one process'} | {devices} | {rollout:.1f} | "
            f"{training:.1f} | {'yes' if plan['fits'] else 'no'} | {decode:,.0f} | {train:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """Return a page whose plans are those of the code as it is.

    Args:
        text: The page; ``<!-- plan: OPTIONS -->`` stands above a fenced block, ``<!-- plans -->``
            above a table.
    """
    text = re.sub(
        r"(<!-- plan: (.*) -->\n```text\n).*?(```\n)",
        lambda m: f"{m[1]}$ rlzoo plan {m[2]}\n{planned(shlex.split(m[2]))}{m[3]}",
        text,
        flags=re.S,
    )
    return re.sub(r"(<!-- plans -->\n)(?:\|.*\n)*", lambda m: m[1] + table(), text)
