"""A run in a process and a folder of its own: started, watched, resumed.

A run's folder ``runs/SLUG/`` holds ``run.json`` and ``log.txt``, and all that ``rlzoo fit`` writes:
``summary.json``, ``metrics.jsonl``, ``config.yaml``, ``reward.png``, ``checkpoints/``.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from rlzoo.compare.running.matrix import Cell
from rlzoo.display.json_files import numbers, write_json

FIT = (sys.executable, "-m", "rlzoo", "fit")
ENDING = (signal.SIGKILL, signal.SIGTERM)
UNRELATED = (
    "trainer.logger",
    "trainer.enable_progress_bar",
    "ckpt_path",
    "model.seed",
    "data.seed",
)
"""Settings that say where a run is written or shown, and copies of the seed."""


def flat_settings(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted key, without empty ones and those that change no figure."""
    if isinstance(settings, list) and any(isinstance(item, dict) for item in settings):
        settings = dict(enumerate(settings))
    if not isinstance(settings, dict) or (not settings and prefix):
        return {} if settings is None else {prefix: settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if name not in UNRELATED:
            found |= flat_settings(value, name)
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file; nothing if it is missing or half written."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


@dataclass
class RunProcess:
    """A run of the matrix, and what its folder says of it.

    Attributes:
        cell: What it is.
        arguments: Of ``rlzoo fit``.
        settings: All settings by dotted key, those that nobody set included.
        iterations: How many it has; None if only its data can tell.
        cold_start: What its cold start depends on; runs that share it share the cached result.
        folder: Where it goes.
        record: Contents of ``run.json``.
        seen: Newest iteration, reward, held-out accuracy and speed.
    """

    cell: Cell
    arguments: list[str]
    settings: dict[str, Any]
    iterations: int | None
    cold_start: str | None
    folder: Path
    record: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    offset: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def __post_init__(self) -> None:
        saved = read_json(self.folder / "run.json")
        self.record = {
            "slug": self.cell.slug,
            "variant": self.cell.variant,
            "algorithm": self.cell.algorithm.name,
            "seed": self.cell.seed,
            "axes": self.cell.axes,
            "iterations": self.iterations,
            "status": "planned",
            "returncode": None,
            "command": [*FIT, *self.arguments],
            "seconds": 0.0,
            **{k: saved[k] for k in ("status", "returncode", "seconds", "error") if k in saved},
        }
        if self.status in ("planned", "running") and self.finished():
            self.record["status"] = "done"  # on another machine, or after its parent was killed
        self.read_metrics()

    @property
    def status(self) -> str:
        """Return planned, running, done, failed or killed."""
        return str(self.record["status"])

    def save(self, **changes: Any) -> None:
        """Write ``run.json``."""
        self.record |= changes
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "run.json", self.record)

    def summary(self, key: str) -> Any:
        """Return a figure of a finished run; None before."""
        return read_json(self.folder / "summary.json").get(key)

    def finished(self) -> bool:
        """Say whether all iterations were made."""
        done = self.summary("iterations")
        return done is not None and self.iterations in (None, done)

    def changes(self) -> list[str]:
        """Return what differs between the settings in the folder and those of now."""
        path = self.folder / "config.yaml"
        if not path.exists():
            return []
        old, new = flat_settings(yaml.safe_load(path.read_text(encoding="utf-8"))), self.settings
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        return [f"{key} {old.get(key)} -> {new.get(key)}" for key in keys]

    def read_metrics(self) -> bool:
        """Read what was added to metrics.jsonl, and say whether there was anything."""
        path, names = self.folder / "metrics.jsonl", ("reward/mean", "val/accuracy", "tokens/per_s")
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(self.offset)
            lines = file.read().rpartition(b"\n")[0]
        self.offset += len(lines) + 1 if lines else 0
        for line in lines.splitlines():
            with contextlib.suppress(ValueError):
                values = numbers(json.loads(line))
                self.seen |= {k: v for k, v in values.items() if k in ("iteration", *names)}
        return bool(lines)

    def checkpoint(self) -> tuple[int, Path] | None:
        """Return the newest checkpoint to go on from, and its iteration."""
        found = sorted((self.folder / "checkpoints").glob("iteration-*.ckpt"), reverse=True)
        for path in found:
            done = int(path.stem.rpartition("-")[2])
            # After the last iteration no trainer would start again, so no summary would be written.
            if done != self.iterations and (path.is_dir() or self._whole(path, done)):
                return done, path
        return None

    def _whole(self, path: Path, done: int) -> bool:
        """Say whether a file can be read, and has the figures of a validation due there."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # whatever a half-written file makes of torch
            return False
        names = ("val_check_interval", "limit_train_batches", "limit_val_batches")
        every, limit, held_out_batches = (self.settings.get(f"trainer.{name}") for name in names)
        if not isinstance(every, int) or held_out_batches == 0:
            return True
        position = (done - 1) % limit + 1 if isinstance(limit, int) else done
        held_out = state["callbacks"].get("Report", {}).get("held_out", [])
        return position % every != 0 or any(i == done for i, _ in held_out)

    def prepare(self) -> list[str]:
        """Bring the folder to the state of its newest checkpoint, or empty it.

        Returns:
            What to add to the arguments.
        """
        if (found := self.checkpoint()) is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self.record |= {"seconds": 0.0}
        else:
            metrics = self.folder / "metrics.jsonl"
            lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            kept = [line for line in whole if json.loads(line)["iteration"] <= found[0]]
            metrics.write_text("".join(kept), encoding="utf-8")
            (self.folder / "summary.json").unlink(missing_ok=True)
            for path in (self.folder / "checkpoints").glob("iteration-*.ckpt"):
                if path > found[1]:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.offset, self.seen = 0, {}
        self.read_metrics()
        return ["--ckpt_path", str(found[1])] if found else []

    def start(self, environment: dict[str, str], lock: int) -> None:
        """Start the process; it holds the lock of the comparison as long as it lives."""
        command = [*FIT, *self.arguments, *self.prepare()]
        self.record.pop("error", None)
        self.save(status="running", returncode=None)
        with (self.folder / "log.txt").open("ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=[lock],
            )
        self.started = time.monotonic()

    def end(self, stopped: bool = False) -> None:
        """Note how the process ended."""
        assert self.process is not None
        code, self.process = self.process.wait(), None
        self.read_metrics()
        seconds = round(self.record["seconds"] + time.monotonic() - self.started, 3)
        last, done = self.log_tail(1), code == 0 and self.finished()
        # Lightning stops at SIGTERM with status 0.
        signaled = code < 0 or code - 128 in ENDING or (last and "Received SIGTERM" in last[0])
        status = "done" if done else "killed" if stopped or signaled else "failed"
        if status == "failed":
            short = f"ended after {self.summary('iterations') or 0} of {self.iterations} iterations"
            self.record["error"] = last[0] if code and last else short
        self.save(status=status, returncode=code, seconds=seconds)

    def log_tail(self, count: int = 5) -> list[str]:
        """Return the last lines that the run printed."""
        lines = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]
