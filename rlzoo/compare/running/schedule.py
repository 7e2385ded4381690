"""The schedule: a few runs at a time, until all are through or the user stops them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rlzoo.compare.running.run_process import RunProcess

GRACE = 5.0
"""Seconds that a run has to end by itself before it is killed."""


def execute(
    runs: Sequence[RunProcess],
    jobs: int,
    environment: dict[str, str],
    lock: TextIO,
    watch: Callable[[], None],
    halt: threading.Event,
) -> None:
    """Run what is not done, some at a time; one that fails does not keep the others from running.

    Of the runs that share a cold start the first begins alone, so that the others find its result.

    Args:
        runs: All runs, in the order in which they start.
        jobs: How many at a time.
        environment: Of their processes.
        lock: File whose lock they hold.
        watch: Called several times a second.
        halt: Ends it, and what is running, once it is set.
    """
    waiting = [run for run in runs if run.status != "done"]
    running: list[RunProcess] = []
    ready: set[str | None] = {None}
    try:
        while (waiting or running) and not halt.is_set():
            for run in list(running):
                assert run.process is not None
                if run.read_metrics():
                    ready.add(run.cold_start)
                if run.process.poll() is not None:
                    running.remove(run)
                    run.end()
            busy = {run.cold_start for run in running} - ready
            for run in [run for run in waiting if run.cold_start not in busy][
                : jobs - len(running)
            ]:
                if run.cold_start not in busy:
                    waiting.remove(run)
                    running.append(run)
                    run.start(environment, lock.fileno())
                    busy |= {run.cold_start} - ready
            watch()
            time.sleep(0.2)
    finally:
        stop(running)
        watch()


def stop(running: Sequence[RunProcess]) -> None:
    """End processes and all they started, and mark their runs as killed."""
    until = time.monotonic() + GRACE
    for number in (signal.SIGTERM, signal.SIGKILL):
        for run in running:
            if run.process is not None and run.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.process.pid, number)
        while any(r.process and r.process.poll() is None for r in running):
            if number == signal.SIGTERM and time.monotonic() > until:
                break
            time.sleep(0.05)
    for run in running:
        run.end(stopped=True)
