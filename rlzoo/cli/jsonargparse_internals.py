"""What happens to settings when a later config or option names another class.

jsonargparse 4.53 keeps every old setting that the new class also accepts, defaults included, and
drops the rest without a word. So ``--model.algorithm GSPO`` over a GRPO config would run GSPO with
GRPO's clip, hundreds of times too wide, and SGD would run with AdamW's weight decay. Here no class
inherits another one's defaults, an objective inherits nothing from another one, and every setting
that is lost, of whatever class, is named.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

from jsonargparse import Namespace, _typehints

from rlzoo.algorithms.base import Algorithm

log = logging.getLogger("rlzoo")
_original = _typehints.discard_init_args_on_class_path_change


def _discard(parser_or_action: Any, previous: Any, value: Any) -> None:
    old, new = (_class_path(spec) for spec in (previous, value))
    if old is None or new is None or old == new or "init_args" not in previous:
        return
    settings = previous["init_args"]
    before = dict(settings.items()) if isinstance(settings, Namespace) else dict(settings)
    parameters = inspect.signature(_typehints.import_object(old)).parameters
    chosen = {
        key: val
        for key, val in before.items()
        if key not in parameters or parameters[key].default != val
    }
    inherits = not issubclass(_typehints.import_object(new), Algorithm)
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
    _typehints.discard_init_args_on_class_path_change = _discard
