"""Turns what the configuration parser says into one line that names the key and the remedy."""

from __future__ import annotations

import inspect
import re
from abc import ABCMeta
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from rlzoo.errors import nearest
from rlzoo.training.data import PromptDataModule
from rlzoo.training.settings import Settings

HINTS: dict[str, Any] = {
    f"{section}.{name}": hint
    for section, declared in (("model", Settings), ("data", PromptDataModule.__init__))
    for name, hint in get_type_hints(declared).items()
    if name != "return"
}
"""Every key of ``model:`` and ``data:``, with its type."""


def _parts(hint: Any) -> Iterator[Any]:
    parts = get_args(hint)
    if not parts:
        yield hint
    for part in parts:
        yield from _parts(part)


FAMILIES: dict[str, type] = {
    key: kind for key, hint in HINTS.items() for kind in _parts(hint) if isinstance(kind, ABCMeta)
}
"""Configuration keys whose values are class names, and what the class must be."""

LISTS = {key for key, hint in HINTS.items() if get_origin(hint) in (list, Sequence)}
"""Configuration keys whose values are lists."""


def class_names(base: type) -> list[str]:
    """Return the names of every concrete class below a base, imported so far."""
    names: list[str] = []
    subclasses: list[type] = base.__subclasses__()
    for cls in subclasses:
        if not inspect.isabstract(cls):
            names.append(cls.__name__)
        names += class_names(cls)
    return sorted(set(names))


def explain(message: str, keys: Iterable[str]) -> str:
    """Return a parser's message as one line with a suggestion.

    Args:
        message: What jsonargparse said.
        keys: Every key the parser knows, such as ``model.group_size``.

    Returns:
        One line.
    """
    found = re.search(r'[Pp]arser key "(.+?)"', message)
    key = found[1] if found else ""
    line = (
        _no_such_key(message, list(keys))
        or _no_such_setting(message, key)
        or _one_item(message, key)
        or _not_set(message)
        or _no_such_class(message, key)
    )
    return line or re.sub(r"\s+", " ", message).strip()


def _no_such_key(message: str, known: list[str]) -> str | None:
    if found := re.search(r"unrecognized arguments: (.*)", message):
        words = [w for w in found[1].split() if w.startswith("-")] or found[1].split()
        return f"{words[0]}: no such option; {nearest_key(words[0].lstrip('-'), known)}"
    if found := re.search(r"does not accept option '(.+?)'", message):
        return f"{found[1]}: no such key; {nearest_key(found[1], known)}"
    return None


def _no_such_setting(message: str, key: str) -> str | None:
    found = re.search(
        r"class_path '(?P<path>.+?)':\s*(?:Validation failed: )?"
        r"Option '(?P<option>.+?)' is not accepted",
        message,
    ) or re.search(
        r"Option '(?P<option>.+?)' is not accepted\. "
        r"Got value: Namespace\(class_path='(?P<path>.+?)'",
        message,
    )
    return f"{key}: {_not_read(found['path'], found['option'])}" if found else None


def _one_item(message: str, key: str) -> str | None:
    """Answer one item of a list that stands where the list should."""
    found = re.search(r"Expected a <class '(?:list|collections.abc.Sequence)'>.*: (.*)", message)
    if not found or key not in LISTS:
        return None
    item = found[1].strip()
    if re.fullmatch(r"[\w.]+", item):
        return f"{key}: it is a list; write --{key}+={item}, or [{item}] in a file"
    return f"{key}: it is a list; give its items in brackets, or after a dash each"


def _not_set(message: str) -> str | None:
    if found := re.search(r"arguments are required: (.*)", message):
        missing = re.sub(r"\b(fit|validate)\.", "", found[1])
        return f"{missing}: not set; name a file with --config, or see --help"
    return None


def _no_such_class(message: str, key: str) -> str | None:
    if found := re.search(r"dot import path string: (\S+)", message):
        base = FAMILIES.get(key)
        choices = nearest(found[1], class_names(base)) if base else "write package.module.Class"
        return f"{key}: no class '{found[1]}'; {choices}; or give the import path of your own"
    return None


def nearest_key(name: str, known: list[str]) -> str:
    """Return a hint for a key, among keys of the same group if there is no close one."""
    hint = nearest(name, known)
    if hint.startswith("did you mean"):
        return hint
    group = name.rpartition(".")[0]
    siblings = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == group]
    if siblings:
        return f"keys{f' of {group}' if group else ''}: {', '.join(siblings)}"
    return "see --help for the keys there are"


def _not_read(class_path: str, option: str) -> str:
    module, _, name = class_path.rpartition(".")
    reads = _parameters(getattr(import_module(module), name))
    listed = f"it reads {', '.join(reads)}" if reads else "it has no settings"
    hint = nearest(option, reads) if reads else ""
    close = f"; {hint}" if hint.startswith("did you mean") else ""
    return f"{name} does not read '{option}'{close}; {listed}"


def _parameters(cls: type) -> list[str]:
    """Return the names that a class reads, those that its ``**kwargs`` hand on included."""
    names: list[str] = []
    for base in cls.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        names += [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names
