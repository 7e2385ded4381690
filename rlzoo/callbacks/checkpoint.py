"""Checkpoints at iteration boundaries, where nothing is half used."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from rlzoo.errors import UserError

log = logging.getLogger("rlzoo")


def run_folder(trainer: Trainer) -> Path:
    """Return where a run puts its files; every rank has to ask, since Lightning broadcasts it."""
    return Path(trainer.log_dir or trainer.default_root_dir)


class IterationCheckpoint(Checkpoint):
    """Saves every few iterations and after the last, and keeps the newest.

    Lightning's own every_n_train_steps counts optimizer steps, of which an iteration has many.

    Args:
        every_n_iterations: Distance between checkpoints; 0 saves only after the last iteration.
        keep_last: How many to keep.
        dirpath: Folder; ``checkpoints`` in the run's log folder by default.
    """

    def __init__(
        self, every_n_iterations: int = 10, keep_last: int = 1, dirpath: str | None = None
    ) -> None:
        if every_n_iterations < 0:
            raise UserError(f"checkpoint.every_n_iterations must be >= 0, got {every_n_iterations}")
        if keep_last < 1:
            raise UserError(f"checkpoint.keep_last must be >= 1, got {keep_last}")
        self.every_n_iterations, self.keep_last = every_n_iterations, keep_last
        self.dirpath = dirpath
        self.saved: list[str] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if an interval is full."""
        done = int(pl_module.progress["iterations"])  # type: ignore[index]
        every = self.every_n_iterations
        if every and done % every == 0:
            self.save(trainer, done)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save again what was saved before this validation, so that it has the figures too."""
        done = int(pl_module.progress["iterations"])  # type: ignore[index]
        if not trainer.sanity_checking and self._has(done):
            self.save(trainer, done)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what the last interval left over."""
        done = int(pl_module.progress["iterations"])  # type: ignore[index]
        if not self._has(done):
            self.save(trainer, done)

    def _has(self, done: int) -> bool:
        return bool(self.saved) and self.saved[-1].endswith(f"-{done:06d}.ckpt")

    def save(self, trainer: Trainer, done: int) -> None:
        """Write one checkpoint and remove those beyond the newest; every rank must call it."""
        folder = Path(self.dirpath) if self.dirpath else run_folder(trainer) / "checkpoints"
        path = str(folder / f"iteration-{done:06d}.ckpt")
        # Files of another run, from which this one was resumed, are not ours to remove.
        mine = [p for p in self.saved if p != path and Path(p).parent == folder]
        self.saved = [*mine, path]
        trainer.save_checkpoint(path, weights_only=False)
        for old in self.saved[: -self.keep_last]:
            if trainer.is_global_zero:
                shutil.rmtree(old) if Path(old).is_dir() else Path(old).unlink(missing_ok=True)
        self.saved = self.saved[-self.keep_last :]

    def state_dict(self) -> dict[str, Any]:
        """Return which files are kept."""
        return {"saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the list of kept files back."""
        self.saved = list(state_dict["saved"])
