"""The command ``rlzoo inspect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlzoo.cli.parser import Parser
from rlzoo.inspect.examination import DEFAULT, Request, inspect_checkpoint


def inspect(args: Sequence[str]) -> None:
    """Show what objectives do to the same frozen answers of a checkpoint."""
    given = parser().parse_args(args)
    names = tuple(name.strip() for name in (given.algorithms or "").split(",") if name.strip())
    request = Request(names, given.updates, given.prompts, given.group_size, given.seed)
    inspect_checkpoint(given.ckpt_path, request, Path(given.output_dir))


def parser() -> Parser:
    """Return the options of the command."""
    options = Parser(
        "inspect", "Show what objectives do to the same frozen answers of a checkpoint."
    )
    options.add_argument("--ckpt_path", required=True, help="checkpoint of rlzoo fit")
    options.add_argument(
        "--algorithms",
        help="objectives, by comma, or all; your own as module.Class (default: the run's own, "
        + ", ".join(DEFAULT)
        + ")",
    )
    options.add_argument(
        "--updates",
        type=int,
        default=1,
        help="optimizer steps between sampling and looking; 0 is on-policy (default: 1)",
    )
    options.add_argument("--prompts", type=int, default=32, help="prompts (default: 32)")
    options.add_argument("--group_size", type=int, help="answers per prompt (default: the run's)")
    options.add_argument("--output_dir", default="inspect", help="folder of the results")
    options.add_argument("--seed", type=int, default=0, help="seed of prompts and answers")
    return options
