"""The parser of every command but fit and validate, which Lightning's parser reads."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from rlzoo.errors import UserError


class Parser(argparse.ArgumentParser):
    """Python's argument parser, with refusals of one line and no abbreviated options.

    Args:
        command: Name of the command.
        about: What its help opens with.
    """

    def __init__(self, command: str, about: str) -> None:
        self.options: list[str] = []
        super().__init__(prog=f"rlzoo {command}", description=about, allow_abbrev=False)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an argument, and remember its options for suggestions."""
        self.options += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{message}; see {self.prog} --help")
