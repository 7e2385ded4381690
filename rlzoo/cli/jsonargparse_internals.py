"""Everything that reaches into private parts of jsonargparse and of Lightning's command line.

The parts are listed once and looked for on import, so that a version without one of them is refused
by name. One of them is replaced: the rule for settings when a later config or option names another
class. jsonargparse 4.53 keeps every old setting that the new class also accepts, defaults included,
and drops the rest without a word. So ``--model.algorithm GSPO`` over a GRPO config would run GSPO
with GRPO's clip, hundreds of times too wide, and SGD would run with AdamW's weight decay. Here no
class inherits another one's defaults, an objective inherits nothing from another one, and every
setting that is lost, of whatever class, is named.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from rlzoo.algorithms.base import Algorithm
from rlzoo.errors import UserError

log = logging.getLogger("rlzoo")

REMEDIES = {
    "jsonargparse": "pip install 'jsonargparse[signatures]>=4.49,<4.54'",
    "lightning": "pip install lightning==2.6.6",
}
"""How to get a version that was tried; pyproject.toml and constraints.txt say the same."""


@dataclass(frozen=True)
class PrivatePart:
    """A private part of another library.

    Args:
        library: Whose it is.
        name: What it is called there.
        use: What would break without it.
        find: Fails where it is not.
    """

    library: str
    name: str
    use: str
    find: Callable[[], Any]

    def check(self) -> None:
        """Refuse a version that does not have it.

        Raises:
            UserError: Naming the version, the part and the remedy.
        """
        try:
            self.find()
        except (AttributeError, ImportError):
            raise UserError(
                f"{self.library} {version(self.library)} has no {self.name}, without which "
                f"{self.use}; {REMEDIES[self.library]}"
            ) from None


def _rule() -> Any:
    return import_module("jsonargparse._typehints").discard_init_args_on_class_path_change


PARTS = (
    PrivatePart(
        "jsonargparse",
        "_typehints.discard_init_args_on_class_path_change",
        "an objective would inherit the clip of the one it replaces",
        _rule,
    ),
    PrivatePart(
        "jsonargparse",
        "ArgumentParser._actions",
        "a misspelt option could not be answered by the one that was meant",
        lambda: ArgumentParser()._actions,
    ),
    PrivatePart(
        "lightning",
        "LightningCLI._parser",
        "checkpoints could not carry the settings of their run",
        lambda: LightningCLI._parser,
    ),
    PrivatePart(
        "lightning",
        "LightningCLI._parse_ckpt_path",
        "settings of a run would be looked for where rlzoo writes none",
        lambda: LightningCLI._parse_ckpt_path,
    ),
    PrivatePart(
        "lightning",
        "LightningCLI._set_seed",
        "reading a configuration would reset the random numbers",
        lambda: LightningCLI._set_seed,
    ),
    PrivatePart(
        "lightning",
        "LightningCLI._run_subcommand",
        "reading a configuration would start its training",
        lambda: LightningCLI._run_subcommand,
    ),
)
"""Every private part that rlzoo calls, replaces or overrides."""


def check_parts() -> None:
    """Refuse versions of other libraries that lack a private part.

    Raises:
        UserError: Naming the version, the part and the remedy.
    """
    for part in PARTS:
        part.check()


check_parts()
_original = _rule()


def keys_of(parser: LightningArgumentParser) -> list[str]:
    """Return every key a parser knows."""
    return [action.dest for action in parser._actions if action.dest not in ("help", "config")]


def parser_of(cli: LightningCLI, command: str) -> LightningArgumentParser:
    """Return the parser of one command."""
    return cli._parser(command)


def _discard(parser_or_action: Any, previous: Any, value: Any) -> None:
    old, new = (_class_path(spec) for spec in (previous, value))
    if old is None or new is None or old == new or "init_args" not in previous:
        return
    settings = previous["init_args"]
    before = dict(settings.items()) if isinstance(settings, Namespace) else dict(settings)
    parameters = inspect.signature(resolve_name(old)).parameters
    chosen = {
        key: val
        for key, val in before.items()
        if key not in parameters or parameters[key].default != val
    }
    inherits = not issubclass(resolve_name(new), Algorithm)
    for key in before:
        if not inherits or key not in chosen:
            settings.pop(key, None)
    if inherits:
        _original(parser_or_action, previous, value)
    kept = previous["init_args"]
    lost = {key: val for key, val in chosen.items() if key not in kept}
    if lost:
        names = [path.rpartition(".")[2] for path in (old, new)]
        log.warning("%s replaces %s: its settings %s are dropped", names[1], names[0], lost)


def _class_path(spec: Any) -> str | None:
    try:
        path: str | None = spec["class_path"]
    except (KeyError, TypeError):
        return None
    return path


def install() -> None:
    """Put the rule in place; doing it twice changes nothing."""
    import_module("jsonargparse._typehints").discard_init_args_on_class_path_change = _discard  # type: ignore[attr-defined]
