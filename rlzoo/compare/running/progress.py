"""Progress of the runs: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.live import Live
from rich.table import Table

from rlzoo.compare.running.run_process import RunProcess

HEADERS = ("run", "status", "iteration", "reward", "held-out", "tokens/s")
ORDER = ("running", "failed", "killed", "planned", "done")


def columns(run: RunProcess) -> list[str]:
    """Return what is shown of a run: status, iteration, reward, held-out accuracy, speed."""
    seen = run.seen
    total = "?" if run.iterations is None else run.iterations
    shown = [run.cell.slug, run.status, f"{seen.get('iteration', 0):.0f}/{total}"]
    for name, form in (("reward/mean", ".3f"), ("val/accuracy", ".3f"), ("tokens/per_s", ".0f")):
        shown.append(format(seen[name], form) if name in seen else "-")
    return shown


def table(runs: Sequence[RunProcess]) -> Table:
    """Return a table of runs, those first that are under way."""
    shown = Table(*HEADERS)
    for run in sorted(runs, key=lambda run: ORDER.index(run.status)):
        shown.add_row(*columns(run))
    return shown


class Lines:
    """Prints a line when a run's status changes, and at most every few seconds in between."""

    def __init__(self, runs: Sequence[RunProcess], every: float = 10.0) -> None:
        self.runs, self.every = runs, every
        self.printed = {run.cell.slug: (run.status, columns(run), 0.0) for run in runs}

    def __call__(self) -> None:
        """Print what changed."""
        for run in self.runs:
            status, before, when = self.printed[run.cell.slug]
            now, shown = time.monotonic(), columns(run)
            if run.status == status and (shown == before or now - when < self.every):
                continue
            self.printed[run.cell.slug] = run.status, shown, now
            pairs = zip(HEADERS[2:], shown[2:], strict=True)
            print(f"{shown[0]}: {shown[1]}  " + "  ".join(f"{k} {v}" for k, v in pairs), flush=True)


@contextlib.contextmanager
def watching(runs: Sequence[RunProcess]) -> Iterator[Callable[[], None]]:
    """Show progress: a live table on a terminal, else lines."""
    if not sys.stdout.isatty():
        yield Lines(runs)
        return
    with Live(table(runs), auto_refresh=False) as live:
        yield lambda: live.update(table(runs), refresh=True)
