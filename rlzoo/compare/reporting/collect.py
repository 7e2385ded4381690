"""The reader of a comparison's folder: its plan, and the files of each run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlzoo.display.json_files import numbers
from rlzoo.errors import UserError

HELD_OUT = "val/accuracy"
Series = list[tuple[int, float]]


@dataclass(frozen=True)
class RecordedRun:
    """One run, finished or not.

    Attributes:
        slug: Name of its folder.
        variant: What is compared, without the seed.
        algorithm: Name of the objective.
        seed: Seed of the run.
        axes: Settings that tell this variant from others.
        status: ``done``, ``failed``, ``killed``, ``running``, ``planned`` or ``unknown``.
        seconds: Wall-clock time of the process, if known.
        summary: What ``summary.json`` holds, empty if there is none.
        rows: Lines of ``metrics.jsonl``; the last of an iteration counts.
        experts: What ``experts.json`` holds of a mixture of experts, empty if there is none.
        problem: Why the run is not part of the statistics; empty if it is.
    """

    slug: str
    variant: str
    algorithm: str
    seed: int
    axes: dict[str, Any] = field(default_factory=dict)
    status: str = "unknown"
    seconds: float | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)
    experts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @cached_property
    def metrics(self) -> dict[str, Series]:
        """Return every metric's finite values, by iteration."""
        found: dict[str, dict[int, float]] = {}
        for row in self.rows:
            for name, value in row.items():
                if name != "iteration" and math.isfinite(value):
                    found.setdefault(name, {})[int(row["iteration"])] = value
        return {name: sorted(values.items()) for name, values in found.items()}

    def series(self, name: str) -> Series:
        """Return pairs of iteration and finite value; empty if the metric is not there."""
        return self.metrics.get(name, [])

    @property
    def iterations(self) -> int:
        """Return how many iterations left a line."""
        return max((int(row["iteration"]) for row in self.rows), default=0)


@dataclass(frozen=True)
class RecordedComparison:
    """Everything under an output folder.

    Attributes:
        plan: What ``compare.json`` holds, empty if there is none.
        runs: All runs, those that were planned and never started too.
        notes: Oddities of the folders, a sentence each.
    """

    plan: dict[str, Any]
    runs: list[RecordedRun]
    notes: list[str]

    @property
    def used(self) -> list[RecordedRun]:
        """Return the runs that the statistics are made of."""
        return [run for run in self.runs if not run.problem]

    @property
    def variants(self) -> list[str]:
        """Return the names of all variants, in the order of their runs."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def of(self, variant: str) -> list[RecordedRun]:
        """Return the runs of a variant that count, by seed."""
        return sorted((r for r in self.used if r.variant == variant), key=lambda r: r.seed)


def collect(output_dir: Path) -> RecordedComparison:
    """Read a comparison's folder.

    Args:
        output_dir: Holds ``runs/<slug>/run.json`` and, if a plan was written, ``compare.json``.

    Returns:
        All runs in the order of the plan, then of their names.

    Raises:
        UserError: If there is no folder of runs.
    """
    folder = output_dir / "runs"
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name the output_dir of `rlzoo compare`")
    notes: list[str] = []
    plan = read_object(output_dir / "compare.json", notes)
    order = {str(r.get("slug")): i for i, r in enumerate(planned(plan))}
    found: dict[str, RecordedRun] = {}
    for path in sorted(folder.iterdir(), key=lambda p: (order.get(p.name, len(order)), p.name)):
        if path.is_dir():
            run = read_run(path, notes)
            if run is not None:
                found[run.slug] = run
    for entry in planned(plan):
        slug = str(entry.get("slug", ""))
        if slug and slug not in found and "variant" in entry:
            status = str(entry.get("status", "planned"))
            problem = (
                "never started" if status == "planned" else f"{status}, but its folder is gone"
            )
            found[slug] = described(slug, entry, status, problem=problem)
    if not found:
        raise UserError(f"{folder}: no run has a run.json; nothing to report")
    runs = sorted(found.values(), key=lambda r: order.get(r.slug, len(order)))
    return RecordedComparison(plan, without_doubles(runs, notes), notes)


def planned(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that a plan lists."""
    runs = plan.get("runs")
    return [r for r in runs if isinstance(r, dict)] if isinstance(runs, list) else []


def objectives(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objectives that a plan lists, each with its label."""
    listed = plan.get("algorithms")
    return [a for a in listed if isinstance(a, dict) and "label" in a] if listed else []


def same_start(plan: dict[str, Any]) -> bool | None:
    """Return whether all variants of a seed sampled the same first answers; None if unknown."""
    found = plan.get("first_rollouts")
    if not isinstance(found, dict):
        return None
    verdict = found.get("identical", found.get("ok"))
    return None if verdict is None else bool(verdict)


def read_run(path: Path, notes: list[str]) -> RecordedRun | None:
    """Read one run's folder; None, and a note, if it has no usable run.json."""
    entry = read_object(path / "run.json", notes)
    if not {"variant", "seed"} <= entry.keys():
        notes.append(f"runs/{path.name} has no run.json with variant and seed: left out")
        return None
    status = str(entry.get("status", "unknown"))
    summary = read_object(beside(path, "summary.json"), notes)
    rows = read_lines(beside(path, "metrics.jsonl"), notes, path.name)
    reached = max((int(row["iteration"]) for row in rows), default=0)
    known = {int(row["iteration"]) for row in rows if HELD_OUT in row}
    for values in summary.get("held_out") or []:
        if isinstance(values, dict) and int(values.get("iteration", -1)) not in known | {-1}:
            rows.append(numbers(values))
    lost = sum(not math.isfinite(value) for row in rows for value in row.values())
    if lost:
        notes.append(f"{path.name}: {lost} values that are not finite left out")
    evaluated = any(math.isfinite(row.get(HELD_OUT, math.nan)) for row in rows)
    problem = ""
    if status != "done":
        problem = f"{status}, after {reached} iterations" if reached else status
        problem += f" ({entry['error']})" if entry.get("error") else ""
    elif not summary:
        problem = "no summary.json"
    elif not evaluated:
        problem = "no held-out accuracy"
    read = {"summary": summary, "rows": rows, "problem": problem}
    experts = read_object(beside(path, "experts.json"), notes)
    return described(path.name, entry, status, **read, experts=experts)


def described(slug: str, entry: dict[str, Any], status: str, **read: Any) -> RecordedRun:
    """Return a run as run.json or a plan describes it."""
    seconds, axes = entry.get("seconds"), entry.get("axes")
    return RecordedRun(
        slug=slug,
        variant=str(entry["variant"]),
        algorithm=str(entry.get("algorithm", entry["variant"])),
        seed=int(entry.get("seed", 0)),
        axes=axes if isinstance(axes, dict) else {},
        status=status,
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        **read,
    )


def without_doubles(runs: Iterable[RecordedRun], notes: list[str]) -> list[RecordedRun]:
    """Return the runs; of two that count with one variant and seed only the first."""
    kept: dict[tuple[str, int], RecordedRun] = {}
    result = []
    for run in runs:
        key = (run.variant, run.seed)
        if not run.problem and key in kept:
            notes.append(f"{run.slug} repeats seed {run.seed} of {run.variant}: left out")
            continue
        if not run.problem:
            kept[key] = run
        result.append(run)
    return result


def beside(path: Path, name: str) -> Path:
    """Return a run's file, in its folder or exactly one level below; the newest if several."""
    if (path / name).is_file():
        return path / name
    below = sorted(path.glob(f"*/{name}"), key=lambda p: p.stat().st_mtime)
    return below[-1] if below else path / name


def read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing, and with a note if it is broken."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        notes.append(f"{path.parent.name}/{path.name} cannot be read ({error}): ignored")
        return {}
    return value if isinstance(value, dict) else {}


def read_lines(path: Path, notes: list[str], slug: str) -> list[dict[str, float]]:
    """Return the lines of a metrics.jsonl; lines cut short by a kill are counted and left out."""
    if not path.is_file():
        return []
    rows, broken = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows.append(numbers(row) | {"iteration": int(row["iteration"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            broken += bool(line.strip())
    if broken:
        notes.append(f"{slug}: unreadable lines of metrics.jsonl left out, {broken} in all")
    return rows
