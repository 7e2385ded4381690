"""The file of a comparison: it names a base configuration, objectives, seeds and further axes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlzoo.algorithms import discover
from rlzoo.errors import UserError, nearest, one_line

CONFIG_AXIS = "config"
"""The axis whose values are whole configuration files; each takes the place of the base."""


@dataclass(frozen=True)
class Variant:
    """An objective with settings of its own.

    Attributes:
        name: Class of the objective, or the import path of one.
        label: What it is called in folders and figures.
        settings: Arguments of the class, such as ``{"clip_low": 0.1}``.
        overrides: Dotted keys of the fit configuration, for this objective alone.
    """

    name: str
    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparisonConfig:
    """The contents of ``compare.yaml``.

    Attributes:
        algorithms: Objectives.
        base: Configuration that all runs start from.
        seeds: Each objective runs once with each.
        iterations: Length of every run; that of the base if none.
        axes: Dotted key to the values it takes.
        overrides: Dotted keys that hold for all runs.
        output_dir: Where the runs go.
        jobs: Runs at a time.
        threads: Torch threads per run; those of the base if none.
    """

    algorithms: tuple[Variant, ...]
    base: str | None = None
    seeds: tuple[int, ...] = (0,)
    iterations: int | None = None
    axes: dict[str, list[Any]] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    output_dir: str = "runs/compare"
    jobs: int = 1
    threads: int | None = None


@dataclass(frozen=True)
class Cell:
    """One run of the matrix, by what it is.

    Attributes:
        variant: Label without the seed.
        algorithm: The objective.
        seed: Seed of the run.
        axes: Key to value.
        config: Configuration file it starts from.
        options: Dotted keys and values, in the order in which they act.
    """

    variant: str
    algorithm: Variant
    seed: int
    axes: dict[str, Any]
    config: str
    options: tuple[tuple[str, Any], ...]

    @property
    def slug(self) -> str:
        """Return the name of the run's folder."""
        return f"{self.variant}-seed{self.seed}"


def _known(name: str, given: Mapping[Any, Any], cls: type) -> None:
    keys = [f.name for f in dataclasses.fields(cls)]
    for key in given:
        if key not in keys:
            raise UserError(f"{name}: no such key '{key}'; {nearest(str(key), keys)}")


def load(path: str | Path) -> dict[str, Any]:
    """Read a comparison's file.

    Args:
        path: YAML file.

    Returns:
        Its contents.

    Raises:
        UserError: If it is missing, no YAML, no mapping, or has an unknown key.
    """
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config {path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {one_line(error)}") from None
    if not isinstance(given, dict):
        raise UserError(f"{path}: expected keys such as base and algorithms, got {given!r}")
    _known(str(path), given, ComparisonConfig)
    return given


def build(given: Mapping[str, Any]) -> ComparisonConfig:
    """Check the values of a comparison.

    Args:
        given: Contents of a file, with what the command line replaced.

    Returns:
        The comparison.

    Raises:
        UserError: Naming the key, its value and the remedy.
    """
    values = {key: value for key, value in given.items() if value is not None}
    variants = tuple(_variant(spec) for spec in _list("algorithms", values.get("algorithms")))
    _once("algorithms", [variant.label for variant in variants], "give each a label of its own")
    seeds = [_integer("seeds", seed, 0) for seed in _list("seeds", values.get("seeds", [0]))]
    _once("seeds", seeds, "name each once")
    axes = {
        str(key): _list(f"axes.{key}", choices) for key, choices in _map("axes", values).items()
    }
    for key, choices in axes.items():
        _axis(key, choices)
    if values.get("base") is None and CONFIG_AXIS not in axes:
        raise UserError("base: not set; name a configuration of rlzoo fit")
    return ComparisonConfig(
        algorithms=variants,
        base=values.get("base"),
        seeds=tuple(seeds),
        iterations=_integer("iterations", values["iterations"]) if "iterations" in values else None,
        axes=axes,
        overrides={key: _key(key, value) for key, value in _map("overrides", values).items()},
        output_dir=str(values.get("output_dir", ComparisonConfig.output_dir)),
        jobs=_integer("jobs", values.get("jobs", 1)),
        threads=_integer("threads", values["threads"]) if "threads" in values else None,
    )


def chosen(names: Sequence[str], listed: Sequence[Any] | None) -> list[Any]:
    """Turn names of the command line into objectives.

    Args:
        names: Labels of the file, classes, or ``all`` for the whole zoo.
        listed: The objectives of the file; a label of theirs stands for its settings.

    Returns:
        Names and mappings, as a file has them.
    """
    if list(names) == ["all"]:
        return list(discover())
    of_file = {_variant(spec).label: spec for spec in listed or []}
    return [of_file.get(name, name) for name in names]


def cells(comparison: ComparisonConfig) -> list[Cell]:
    """Return the runs: for every seed and point of the axes, all objectives.

    Raises:
        UserError: If two runs would have one name.
    """
    shown, found = _short_names(comparison.axes), []
    points = [
        dict(zip(comparison.axes, values, strict=True))
        for values in itertools.product(*comparison.axes.values())
    ]
    for seed, axes, algorithm in itertools.product(comparison.seeds, points, comparison.algorithms):
        parts = [algorithm.label, *(shown[key] + label_of(value) for key, value in axes.items())]
        options = [("model.algorithm", algorithm.name)]
        options += [(f"model.algorithm.{key}", value) for key, value in algorithm.settings.items()]
        options += [*comparison.overrides.items(), *algorithm.overrides.items()]
        options += [(key, value) for key, value in axes.items() if key != CONFIG_AXIS]
        config = str(axes.get(CONFIG_AXIS, comparison.base))
        variant = "-".join(parts)
        found.append(Cell(variant, algorithm, seed, axes, config, tuple(options)))
    _once("axes", [cell.slug for cell in found], "their values need names that differ")
    return found


def label_of(value: Any) -> str:
    """Return a value as part of a folder's name.

    >>> label_of("configs/quickstart_moe.yaml"), label_of(0.001), label_of("torch.optim.SGD")
    ('quickstart_moe', '0.001', 'SGD')
    """
    text = value if isinstance(value, str) else json.dumps(value)
    if text.endswith((".yaml", ".yml")):
        text = Path(text).stem
    elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text):
        text = text.rpartition(".")[2]
    return re.sub(r"[^\w.+-]+", "_", text).strip("_")


def _short_names(axes: Mapping[str, Any]) -> dict[str, str]:
    """Return the last part of each key, or all of it where two keys end alike."""
    ends = [key.rpartition(".")[2] for key in axes]
    short = {key: end if ends.count(end) == 1 else key for key, end in zip(axes, ends, strict=True)}
    return short | {CONFIG_AXIS: ""}


def _variant(spec: Any) -> Variant:
    if isinstance(spec, str):
        return Variant(spec, label_of(spec))
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise UserError(f"algorithms: expected a name or a mapping with one, got {spec!r}")
    _known(f"algorithms, {spec['name']}", spec, Variant)
    settings, overrides = _map("settings", spec), _map("overrides", spec)
    changes = [key.rpartition(".")[2] + label_of(v) for key, v in (settings | overrides).items()]
    label = str(spec.get("label") or "-".join([label_of(spec["name"]), *changes]))
    if label_of(label) != label:
        raise UserError(f"algorithms: label '{label}' names a folder; use letters, digits, - _ .")
    return Variant(
        spec["name"], label, settings, {key: _key(key, value) for key, value in overrides.items()}
    )


OURS = {
    "seed_everything": "seeds",
    "model.seed": "seeds",
    "data.seed": "seeds",
    "trainer.logger": "output_dir",
    "trainer.max_steps": "iterations",
    "ckpt_path": "nothing: compare resumes by itself",
}
"""Keys of the fit configuration that a comparison sets itself, and what to use instead."""


def _key(key: Any, value: Any) -> Any:
    """Refuse keys that would undo what makes runs comparable."""
    for ours, instead in OURS.items():
        if key == ours or str(key).startswith(f"{ours}."):
            raise UserError(f"{key}: compare sets it; use {instead}")
    if str(key) == CONFIG_AXIS:
        raise UserError(f"{key}: a configuration is no override; use base, or axes.config")
    return value


def _axis(key: str, choices: list[Any]) -> None:
    if key != CONFIG_AXIS:
        _key(key, None)
    if key == "model.algorithm":
        raise UserError("axes.model.algorithm: name objectives under algorithms")
    _once(f"axes.{key}", [label_of(value) for value in choices], "name each value once")


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{name}: expected a list of at least one, got {value!r}")
    return value


def _map(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    value = values.get(name) or {}
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected keys and values, got {value!r}")
    return value


def _integer(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{name}: expected a whole number >= {least}, got {value!r}")
    return value


def _once(name: str, values: Sequence[Any], remedy: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{name}: '{value}' is there twice; {remedy}")
