"""What needs no libraries is answered at once."""

from __future__ import annotations

from collections.abc import Sequence

from rlzoo import __version__
from rlzoo.cli.commands import COMMANDS

OPENING = f"rlzoo {__version__}: policy-gradient objectives for language models"
CLOSING = """\
`rlzoo COMMAND --help` explains a command; `rlzoo fit --config ... --print_config` prints every
setting with its value, in a form that reproduces the run."""


def overview() -> str:
    """Return the list of commands, and where to go from there."""
    names = max(len(name) for name in COMMANDS)
    examples = max(len(command.example) for command in COMMANDS.values())
    lines = [
        f"  rlzoo {name:{names}} {command.example:{examples}}   {command.about}"
        for name, command in COMMANDS.items()
    ]
    return "\n".join([OPENING, "", *lines, "", CLOSING])


def answered(args: Sequence[str]) -> bool:
    """Print the overview or the version, if that is what is asked for.

    Args:
        args: Words of the command line.

    Returns:
        Whether it was.
    """
    word = args[0] if args else "--help"
    if word in ("-h", "--help"):
        print(overview())
    elif word == "--version":
        print(__version__)
    else:
        return False
    return True
