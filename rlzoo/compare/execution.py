"""A comparison from end to end: a plan, its runs, their progress, a report."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from rlzoo.compare.running.matrix import ComparisonConfig
from rlzoo.compare.running.progress import watching
from rlzoo.compare.running.run_list import ReadSettings, first_rollouts, list_runs
from rlzoo.compare.running.run_process import RunProcess
from rlzoo.compare.running.schedule import execute
from rlzoo.display.json_files import write_json
from rlzoo.display.tables import show
from rlzoo.errors import UserError

Task = Literal["train", "print_commands", "dry_run", "report_only"]


def report(folder: Path) -> None:
    """Write the report of a folder of runs, and say where it is."""
    from rlzoo.compare.reporting.report import write_report

    print(f"report: {write_report(folder)}")


def compare(
    comparison: ComparisonConfig, settle: ReadSettings, task: Task = "train", *, force: bool = False
) -> None:
    """Train, show or report on a comparison.

    Args:
        comparison: The matrix of runs.
        settle: Turns arguments of ``rlzoo fit`` into all settings, or refuses them.
        task: ``train`` runs what is missing and reports; the others stop short of training.
        force: Redo runs that were made with other settings.

    Raises:
        UserError: If the comparison cannot run as asked.
        SystemExit: With status 1 if a run did not end well, 130 if the user stopped it.
    """
    runs = list_runs(comparison, settle)
    if task == "print_commands":
        print_commands(runs)
    elif task == "dry_run":
        show_plan(comparison, runs)
    elif task == "report_only":
        for run in runs:
            if run.folder.exists() and not (run.folder / "run.json").exists():
                run.save()  # made from a printed command
        conclude(comparison, runs)
    else:
        with locked(Path(comparison.output_dir)) as lock:
            stopped = train(comparison, runs, lock, force)
        conclude(comparison, runs)
        if stopped:
            print("stopped; the same command goes on", file=sys.stderr)
            raise SystemExit(130)
        if bad := [run for run in runs if run.status != "done"]:
            print(f"{len(bad)} of {len(runs)} runs did not end well", file=sys.stderr)
            raise SystemExit(1)


def train(
    comparison: ComparisonConfig, runs: Sequence[RunProcess], lock: TextIO, force: bool
) -> bool:
    """Run what is missing.

    Returns:
        Whether the user stopped it.

    Raises:
        UserError: If runs were made with other settings, unless forced.
    """
    refuse_changed(runs, force)
    for run in runs:
        run.save(**{} if run.status == "done" else {"status": "planned"})
    done = [run for run in runs if run.status == "done"]
    if done:
        print(f"{len(done)} of {len(runs)} runs are done already")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("MPLBACKEND", "Agg")
    if comparison.threads is not None:
        environment["OMP_NUM_THREADS"] = str(comparison.threads)
    halt = threading.Event()
    with halting(halt), watching(runs) as watch:
        execute(runs, comparison.jobs, environment, lock, watch, halt)
    for run in runs:
        if run.status == "failed" or (run.status == "killed" and not halt.is_set()):
            print(f"{run.cell.slug} {run.status}; {run.folder / 'log.txt'} ends with")
            print("".join(f"  | {line}\n" for line in run.log_tail()), end="")
    return halt.is_set()


def refuse_changed(runs: Sequence[RunProcess], force: bool) -> None:
    """Refuse to mix runs of different settings in one folder, or remove the old ones if forced."""
    changed = {run.cell.slug: changes for run in runs if (changes := run.changes())}
    if changed and not force:
        slug, changes = next(iter(changed.items()))
        raise UserError(
            f"{len(changed)} runs in the output_dir were made with other settings, {slug} with"
            f" {'; '.join(changes[:3])}: give another --output_dir, or --force to redo them"
        )
    for run in runs:
        if run.cell.slug in changed:
            shutil.rmtree(run.folder)
            run.record |= {"status": "planned", "returncode": None, "seconds": 0.0}
            run.record.pop("error", None)


@contextlib.contextmanager
def halting(halt: threading.Event) -> Iterator[None]:
    """Turn the signals that end a command into an event."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: halt.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def print_commands(runs: Sequence[RunProcess]) -> None:
    """Print a shell command per run; their folders are what a report reads."""
    for run in runs:
        print(shlex.join(["rlzoo", "fit", *run.arguments]))
    note = "each fills its own folder; then: rlzoo compare ... --report_only"
    if any(run.cold_start for run in runs):
        note = f"run the first alone, others find its cold start in RLZOO_CACHE; {note}"
    print(f"# {note}", file=sys.stderr)


def show_plan(comparison: ComparisonConfig, runs: Sequence[RunProcess]) -> None:
    """Print what would run, and what differs between the runs."""
    rows: list[tuple[str, ...]] = []
    left: list[int | None] = []
    for run in runs:
        state, checkpoint = run.status, None if run.status == "done" else run.checkpoint()
        if changes := run.changes():
            state = f"other settings: {'; '.join(changes[:3])}"
        elif checkpoint:
            state = f"{run.status}, goes on after {checkpoint[0]}"
        total = run.iterations
        if state != "done":
            left.append(None if total is None else total - (checkpoint[0] if checkpoint else 0))
        length = "?" if total is None else str(total)
        rows.append((run.cell.slug, str(run.cell.seed), length, state))
    show("runs", ("run", "seed", "iterations", "state"), rows)
    known = [n for n in left if n is not None]
    more = "" if len(known) == len(left) else f" and those of {len(left) - len(known)} more"
    print(f"base: {', '.join(dict.fromkeys(run.cell.config for run in runs))}")
    print(f"{len(runs)} runs, {len(left)} to do, {sum(known)} iterations to go{more}")
    print(f"{comparison.jobs} at a time, into {comparison.output_dir}")
    print("what differs between the runs, but for the seed:")
    for key in sorted({key for run in runs for key in run.settings} - {"seed_everything"}):
        values: dict[str, list[str]] = {}
        for run in runs:
            values.setdefault(str(run.settings.get(key)), []).append(run.cell.variant)
        if len(values) > 1:
            texts = [f"{v} ({', '.join(dict.fromkeys(names))})" for v, names in values.items()]
            print(f"  {key}: {', '.join(texts)}")


def conclude(comparison: ComparisonConfig, runs: Sequence[RunProcess]) -> None:
    """Write compare.json and the report."""
    check = first_rollouts(runs)
    contents = {
        "base": comparison.base,
        "algorithms": [vars(variant) for variant in comparison.algorithms],
        "seeds": comparison.seeds,
        "iterations": comparison.iterations,
        "axes": comparison.axes,
        "overrides": comparison.overrides,
        "runs": [run.record for run in runs],
        "first_rollouts": check,
    }
    folder = Path(comparison.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "compare.json", contents)
    say_first_rollouts(check)
    slugs = {run.cell.slug for run in runs}
    if more := {path.parent.name for path in folder.glob("runs/*/run.json")} - slugs:
        print(f"{len(more)} runs of earlier plans are in {folder} and in the report too")
    if any(run.status == "done" for run in runs):
        report(folder)


def say_first_rollouts(check: dict[str, Any]) -> None:
    """Print the result of the check in a line, or a line for each group that fails it."""
    compared = [group for group in check["groups"] if group["identical"] is not None]
    same = [group for group in compared if group["identical"]]
    if compared:
        print(f"first rollouts: identical in {len(same)} of {len(compared)} groups of runs")
    for group in compared:
        if not group["identical"]:
            hashes = ", ".join(f"{slug} {digest}" for slug, digest in group["hashes"].items())
            print(f"  they differ for seed {group['seed']} {group['axes'] or ''}: {hashes}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[TextIO]:
    """Keep others out of a folder; the lock lives on in runs that outlive this process.

    Raises:
        UserError: If it is taken.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"output_dir {folder} is in use by another comparison or by runs it left behind; "
                "wait for them, or give another --output_dir"
            ) from None
        yield lock
