"""The commands that need no trainer: inspect, generate, export, algorithms."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlzoo.algorithms import Algorithm, discover
from rlzoo.errors import UserError, nearest
from rlzoo.inspect.command import inspect_checkpoint
from rlzoo.objective.gradient_weight import clip_effect, ratio_unit, sources
from rlzoo.rollout.native import NativeSampler
from rlzoo.training.checkpoint import policy_of, read_checkpoint
from rlzoo.types import Prompt, Prompts, SamplingParams


def generate(args: Sequence[str]) -> None:
    """Answer prompts with a trained policy."""
    parser = _parser("generate", "Answer prompts with a trained policy.")
    parser.add_argument("--ckpt_path", required=True, help="checkpoint of rlzoo fit")
    parser.add_argument("--prompt", required=True, action="append", help="may be given repeatedly")
    parser.add_argument("--chat", action="store_true", help="wrap the prompt as a user message")
    parser.add_argument("--samples", type=int, default=1, help="answers per prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max_new_tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--seed", type=int, default=0, help="seed of the answers")
    given = parser.parse_args(args)
    policy = policy_of(read_checkpoint(given.ckpt_path))
    rows = []
    for text in given.prompt:
        prompt: Any = [{"role": "user", "content": text}] if given.chat else text
        rows.append(Prompt(tuple(policy.encode(prompt)), text))
    params = SamplingParams(given.max_new_tokens, given.temperature)
    prompts = Prompts(tuple(rows), tuple(range(len(rows))))
    rollouts = NativeSampler().sample(policy, prompts, given.samples, params, given.seed)
    for row, completion in enumerate(rollouts.completions):
        cut = "" if bool(rollouts.terminated[row]) else " [cut]"
        print(f"{rollouts.prompt(row).text}{completion}{cut}")


def export(args: Sequence[str]) -> None:
    """Write a trained policy as a Hugging Face folder."""
    parser = _parser("export", "Write a trained policy as a Hugging Face folder.")
    parser.add_argument("--ckpt_path", required=True, help="checkpoint of rlzoo fit")
    parser.add_argument("--output_dir", required=True, help="folder to write")
    given = parser.parse_args(args)
    folder = Path(given.output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"output_dir '{folder}' is not empty; give a new folder")
    policy_of(read_checkpoint(given.ckpt_path)).save_pretrained(folder)
    print(f"wrote {folder}; load it with AutoModelForCausalLM.from_pretrained('{folder}')")


def print_zoo(zoo: Mapping[str, type[Algorithm]]) -> None:
    """Print a table of objectives; ratio and clip are found by trying, not by declaration."""
    rows = [("name", "ratio per", "clip acts on", "aggregation", "advantage", "arXiv", "defaults")]
    for name, cls in zoo.items():
        parameters = inspect.signature(cls).parameters.values()
        defaults = ", ".join(f"{p.name}={p.default}" for p in parameters)
        unit, effect = ratio_unit(cls()), clip_effect(cls())
        rows.append((name, unit, effect, cls.aggregation, cls.advantage, sources(cls), defaults))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def algorithms(args: Sequence[str]) -> None:
    """List the objectives, or explain one."""
    parser = _parser("algorithms", "List the objectives, or explain one.")
    parser.add_argument("name", nargs="?", help="objective to explain")
    given = parser.parse_args(args)
    zoo = discover()
    if given.name is None:
        print_zoo(zoo)
        return
    if given.name not in zoo:
        raise UserError(f"no objective '{given.name}'; {nearest(given.name, list(zoo))}")
    cls = zoo[given.name]
    print(f"{given.name}: {inspect.getdoc(cls)}\n")
    print(f"aggregation {cls.aggregation}, advantage {cls.advantage}; {inspect.getsourcefile(cls)}")


def look(args: Sequence[str]) -> None:
    """Show what objectives do to the same frozen answers of a checkpoint."""
    inspect_checkpoint(args)


COMMANDS = {"inspect": look, "generate": generate, "export": export, "algorithms": algorithms}


def run(command: str, args: Sequence[str], others: Sequence[str]) -> None:
    """Run a command by name.

    Args:
        command: What the user typed.
        args: The rest of the line.
        others: Commands that exist elsewhere, for the message.

    Raises:
        UserError: If there is none of that name, or its options are wrong.
    """
    if command not in COMMANDS:
        raise UserError(f"no command '{command}'; {nearest(command, [*others, *COMMANDS])}")
    COMMANDS[command](args)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(f"{message}; see {self.prog} --help")


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return _Parser(prog=f"rlzoo {name}", description=description, allow_abbrev=False)
