"""The commands: one table, and one file for each."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from rlzoo.errors import UserError, nearest


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        example: What may follow its name.
        about: What it is for, in a few words.
        function: Import path of what runs it, ``module:name``. A path and not the function itself,
            so that the table can be read before torch is imported.
    """

    example: str
    about: str
    function: str

    def load(self) -> Callable[[list[str]], None]:
        """Import the function; it takes the words after the name of the command."""
        function: Callable[[list[str]], None] = pkgutil.resolve_name(self.function)
        return function


COMMANDS = {
    "fit": Command(
        "--config configs/quickstart.yaml [--model.algorithm GSPO]",
        "train",
        "rlzoo.cli.commands.fit:fit",
    ),
    "validate": Command(
        "--config ... [--ckpt_path ...]",
        "held-out accuracy",
        "rlzoo.cli.commands.fit:validate",
    ),
    "compare": Command(
        "--config configs/compare.yaml [--seeds 0,1,2 --jobs 2]",
        "side by side",
        "rlzoo.cli.commands.compare:compare",
    ),
    "plan": Command(
        "--config ... [--hardware h100]",
        "memory and speed",
        "rlzoo.cli.commands.plan:plan",
    ),
    "inspect": Command(
        "--ckpt_path ... [--algorithms GRPO,GSPO]",
        "what the clips do",
        "rlzoo.cli.commands.inspect:inspect",
    ),
    "generate": Command(
        '--ckpt_path ... --prompt "S31452="',
        "answers to a prompt",
        "rlzoo.cli.commands.generate:generate",
    ),
    "export": Command(
        "--ckpt_path ... --output_dir ...",
        "a Hugging Face folder",
        "rlzoo.cli.commands.export:export",
    ),
    "algorithms": Command("[NAME]", "the objectives", "rlzoo.cli.commands.algorithms:algorithms"),
}
"""Every command by name, in the order of the overview."""


def command_of(name: str) -> Command:
    """Return a command by name.

    Raises:
        UserError: If there is none of that name.
    """
    if name not in COMMANDS:
        raise UserError(f"no command '{name}'; {nearest(name, list(COMMANDS))}")
    return COMMANDS[name]
