"""All settings that a command line of fit stands for."""

from __future__ import annotations

import logging
from typing import Any

import yaml

from rlzoo.cli.commands.fit import RLCLI, lightning_command
from rlzoo.cli.jsonargparse_internals import parser_of

log = logging.getLogger("rlzoo")


class Settled(RLCLI):
    """A command line of fit that is read and checked, and starts nothing."""

    def _set_seed(self) -> None:
        pass

    def before_instantiate_classes(self) -> None:
        """Leave it to the run to say whether its machine will do."""

    def instantiate_classes(self) -> None:
        """Keep the configuration alone."""

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def settle(args: list[str]) -> dict[str, Any]:
    """Return every setting that fit would run with.

    Args:
        args: The command line after ``rlzoo fit``.

    Returns:
        The settings, defaults included.

    Raises:
        UserError: If the configuration is refused.
    """
    level = log.level
    log.setLevel(logging.ERROR)  # what a setting replaces is said by the run
    try:
        cli = lightning_command(["fit", *args], Settled)
    finally:
        log.setLevel(level)
    settings: dict[str, Any] = yaml.safe_load(parser_of(cli, "fit").dump(cli.config["fit"]))
    return settings
