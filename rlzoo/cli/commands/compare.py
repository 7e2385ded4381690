"""The command ``rlzoo compare``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rlzoo.cli.commands.settle import settle
from rlzoo.cli.parser import Parser
from rlzoo.compare import execution
from rlzoo.compare.running import matrix
from rlzoo.compare.running.matrix import ComparisonConfig
from rlzoo.errors import UserError, nearest

TASKS: tuple[execution.Task, ...] = ("print_commands", "dry_run", "report_only")
"""Options that stop short of training; if several are given, the first counts."""


def compare(args: Sequence[str]) -> None:
    """Train a matrix of objectives, seeds and settings, and report on it.

    Raises:
        UserError: If the comparison cannot run as asked.
        SystemExit: With status 1 if a run did not end well, 130 if the user stopped it.
    """
    given = arguments(args)
    if given.report_only and given.config is None and given.algorithms is None:
        if given.output_dir is None:
            raise UserError("--report_only: give --output_dir, or the --config of the comparison")
        execution.report(Path(given.output_dir))
        return
    asked = [task for task in TASKS if getattr(given, task)]
    task = asked[0] if asked else "train"
    execution.compare(comparison_of(given), settle, task, force=given.force)


def arguments(args: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        UserError: If an option is misspelt or a value makes no sense.
    """
    about = "Train a matrix of objectives, seeds and settings, and report on it. "
    about += "The same call goes on where an earlier one was stopped."
    parser = Parser("compare", about)
    add = parser.add_argument
    add("--config", help="file such as configs/compare.yaml; the options below replace its keys")
    add("--base", help="configuration of rlzoo fit that all runs start from")
    add("--algorithms", help="GRPO,GSPO: labels of the file, classes, import paths; all: the zoo")
    add("--seeds", help="0,1,2: each objective runs once with each")
    add("--iterations", type=int, help="length of every run; that of the base by default")
    add(
        "--axis",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="model.optimizer.lr=1e-4,3e-4 or config=dense.yaml,moe.yaml; may be given repeatedly",
    )
    add("--override", action="append", default=[], metavar="KEY=VALUE", help="setting of all runs")
    add("--output_dir", help="where the runs go; the same folder resumes them")
    add("--jobs", type=int, help="runs at a time")
    add("--threads", type=int, help="torch threads per run; those of the base by default")
    add("--force", action="store_true", help="redo runs that were made with other settings")
    add("--dry_run", action="store_true", help="print the plan and stop")
    add("--print_commands", action="store_true", help="print a command per run and stop")
    add("--report_only", action="store_true", help="report on what is there and stop")
    given, unknown = parser.parse_known_args(args)
    if unknown:
        raise UserError(f"{unknown[0]}: no such option; {nearest(unknown[0], parser.options)}")
    return given


def comparison_of(given: argparse.Namespace) -> ComparisonConfig:
    """Return the comparison of a file, with what the command line replaces or adds.

    Raises:
        UserError: If a value makes no sense.
    """
    values = matrix.load(given.config) if given.config else {}
    for name in ("base", "iterations", "output_dir", "jobs", "threads"):
        if getattr(given, name) is not None:
            values[name] = getattr(given, name)
    if given.algorithms is not None:
        values["algorithms"] = matrix.chosen(given.algorithms.split(","), values.get("algorithms"))
    if given.seeds is not None:
        try:
            values["seeds"] = [int(seed) for seed in given.seeds.split(",")]
        except ValueError:
            raise UserError(f"--seeds {given.seeds}: expected numbers such as 0,1,2") from None
    for option, name in (("axis", "axes"), ("override", "overrides")):
        pairs = [text.partition("=") for text in getattr(given, option)]
        for key, sign, value in pairs:
            if not (key and sign and value):
                raise UserError(f"--{option} {key}{sign}{value}: expected KEY=VALUE")
        added = {k: v.split(",") if option == "axis" else v for k, _, v in pairs}
        if added:
            values[name] = {**(values.get(name) or {}), **added}
    return matrix.build(values)
