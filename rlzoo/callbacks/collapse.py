"""The collapse monitor: it warns, stops, or goes back to the last healthy weights."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy

from rlzoo import distributed
from rlzoo.callbacks.checkpoint import IterationCheckpoint, run_folder
from rlzoo.callbacks.collapse_rules import CollapseRule, default_rules
from rlzoo.callbacks.snapshot import Snapshot, optimizer_of
from rlzoo.display.json_files import write_json
from rlzoo.errors import UserError

log = logging.getLogger("rlzoo")


class CollapseMonitor(Callback):
    """Judges every iteration by rules, and acts where a rule fires several times in a row.

    What happened goes to the log, to TensorBoard as text, and to ``collapse.json`` in the run's
    folder.

    Args:
        action: ``warn`` says so and goes on; ``stop`` ends the run as if it were over; ``rollback``
            goes back to the last healthy weights with a smaller learning rate; ``none`` does not
            look at all.
        rules: What counts as collapse; an empty list stands for rules that a healthy run does not
            meet.
        patience: Iterations in a row for which a rule has to fire.
        warmup_iterations: Iterations at the start that are not judged.
        lr_factor: By what a rollback multiplies the learning rate.
        max_rollbacks: Rollbacks before the next one ends the run, with the healthy weights.
        snapshot_every_n_iterations: Healthy iterations between two copies of the weights, which
            ``rollback`` keeps in memory. It goes back to a copy that as many healthy iterations
            followed.
    """

    def __init__(
        self,
        action: Literal["none", "warn", "stop", "rollback"] = "warn",
        rules: Sequence[CollapseRule] = (),
        patience: int = 3,
        warmup_iterations: int = 10,
        lr_factor: float = 0.5,
        max_rollbacks: int = 2,
        snapshot_every_n_iterations: int = 10,
    ) -> None:
        for name, value, least in (
            ("patience", patience, 1),
            ("warmup_iterations", warmup_iterations, 0),
            ("max_rollbacks", max_rollbacks, 1),
            ("snapshot_every_n_iterations", snapshot_every_n_iterations, 1),
        ):
            if value < least:
                raise UserError(f"collapse.{name} must be >= {least}, got {value}")
        if not 0 < lr_factor <= 1:
            raise UserError(f"collapse.lr_factor must be in (0, 1], got {lr_factor}")
        self.action, self.patience, self.warmup_iterations = action, patience, warmup_iterations
        self.rules = list(rules) or default_rules()
        self.lr_factor, self.max_rollbacks = lr_factor, max_rollbacks
        self.snapshot_every_n_iterations = snapshot_every_n_iterations
        self.history: list[dict[str, float]] = []
        self.streaks = [0] * len(self.rules)
        self.events: list[dict[str, Any]] = []
        self.rollbacks, self.lr_scale = 0, 1.0
        self.healthy: Snapshot | None = None
        self.candidate: Snapshot | None = None
        self.healthy_iterations = 0
        self.held: str | None = None
        self.ended: str | None = None
        self.folder = Path()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a rollback of sharded weights, and learn where the run's files go."""
        strategy = trainer.strategy
        whole = isinstance(strategy, SingleDeviceStrategy | DDPStrategy)
        if self.action == "rollback" and (not whole or isinstance(strategy, DeepSpeedStrategy)):
            raise UserError(
                f"collapse.action rollback copies whole weights, and {type(strategy).__name__} "
                "shards them; use stop, and resume from a checkpoint with a smaller learning rate"
            )
        self.folder = run_folder(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy what the run starts from."""
        if self.action == "rollback":
            self.healthy = self.candidate = Snapshot.take(pl_module, len(self.history))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Judge the iteration, and act on it."""
        if self.action == "none":
            return
        module: Any = pl_module
        watched = {name for rule in self.rules for name in rule.watches}
        self.history.append({k: float(v) for k, v in module.means.items() if k in watched})
        # Every rank has the same metrics; one decision leaves no doubt.
        verdicts = distributed.broadcast_object(self._judge())
        self.streaks = [
            streak + 1 if verdict else 0
            for streak, verdict in zip(self.streaks, verdicts, strict=True)
        ]
        fired = [i for i, streak in enumerate(self.streaks) if streak == self.patience]
        if fired:
            self._act(trainer, module, {i: verdicts[i] for i in fired})
        elif any(verdicts):
            self.healthy_iterations = 0
            self._hold_checkpoint(trainer)
        else:
            self._count_healthy(trainer, module)
        means: dict[str, float] = {}
        means["collapse/rules_firing"] = float(sum(map(bool, verdicts)))
        if self.action == "rollback":
            means["collapse/rollbacks"] = float(self.rollbacks)
            means["collapse/lr_scale"] = self.lr_scale
        for name, mean in means.items():
            pl_module.log(name, mean, batch_size=1, rank_zero_only=True)

    def _judge(self) -> list[str | None]:
        if len(self.history) <= self.warmup_iterations:
            return [None] * len(self.rules)
        return [rule.check(self.history) for rule in self.rules]

    def _act(self, trainer: Trainer, module: Any, fired: dict[int, str]) -> None:
        done = int(module.progress["iterations"])
        said = "; ".join(f"{type(self.rules[i]).__name__}: {text}" for i, text in fired.items())
        event: dict[str, Any] = {
            "iteration": done,
            "rules": [type(self.rules[i]).__name__ for i in fired],
            "messages": list(fired.values()),
            "action": self.action,
        }
        if self.action == "warn":
            outcome = "the run goes on"
        elif self.action == "stop":
            self._hold_checkpoint(trainer)
            self.streaks = [0] * len(self.rules)
            outcome = "the run is stopped"
            if self.held:
                outcome += f"; the checkpoint before it is {self.held}"
            event["checkpoint"] = self.held
        else:
            outcome = self._roll_back(module, event)
        line = f"collapse at iteration {done}, {self.patience} in a row: {said}; {outcome}"
        if event["action"] == "stop":
            trainer.should_stop, self.ended = True, line
        self.events.append(event)
        self._publish(trainer, line, done)

    def _roll_back(self, module: Any, event: dict[str, Any]) -> str:
        """Go back; returns what was done."""
        snapshot = self.healthy
        assert snapshot is not None
        last = self.rollbacks == self.max_rollbacks
        if not last:
            snapshot.scale(self.lr_factor)
            self.rollbacks, self.lr_scale = self.rollbacks + 1, self.lr_scale * self.lr_factor
        snapshot.restore(module)
        del self.history[snapshot.seen :]
        self.streaks, self.healthy_iterations = [0] * len(self.rules), 0
        self.candidate = snapshot
        event |= {"restored_iteration": snapshot.iteration, "lr_scale": self.lr_scale}
        back = f"weights are back at those after iteration {snapshot.iteration}"
        if last:
            event["action"] = "stop"
            return f"{back}, and after {self.rollbacks} rollbacks the run is stopped"
        rate = optimizer_of(module).param_groups[0]["lr"]
        return (
            f"rollback {self.rollbacks} of {self.max_rollbacks}: {back}, and the learning rate is "
            f"{rate:.3g}, {self.lr_scale:.3g} times the configured schedule's"
        )

    def _count_healthy(self, trainer: Trainer, module: Any) -> None:
        self._release_checkpoint(trainer)
        self.healthy_iterations += 1
        due = self.healthy_iterations % self.snapshot_every_n_iterations == 0
        if self.action == "rollback" and due:
            self.healthy = self.candidate
            self.candidate = Snapshot.take(module, len(self.history))

    def _hold_checkpoint(self, trainer: Trainer) -> None:
        """Keep the checkpoint from before the trouble out of the reach of its successors."""
        saver = _saver(trainer)
        if self.action == "stop" and self.held is None and saver is not None and saver.saved:
            *saver.saved, self.held = saver.saved

    def _release_checkpoint(self, trainer: Trainer) -> None:
        saver = _saver(trainer)
        if self.held is not None and saver is not None:
            saver.saved = [self.held, *saver.saved]
            self.held = None

    def _publish(self, trainer: Trainer, line: str, done: int) -> None:
        if not trainer.is_global_zero:
            return
        log.warning(line)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("collapse", line, done)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "collapse.json", self.events)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say last of all why the run ended, if it ended early."""
        if self.ended and trainer.is_global_zero:
            log.warning("stopped early: %s", self.ended)

    def state_dict(self) -> dict[str, Any]:
        """Return what the rules have seen; the copies of the weights are not in it."""
        names = ("history", "streaks", "events", "rollbacks", "lr_scale", "held")
        return {name: copy.deepcopy(getattr(self, name)) for name in names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back; with other rules, each starts to count anew."""
        for name, value in state_dict.items():
            setattr(self, name, copy.deepcopy(value))
        if len(self.streaks) != len(self.rules):
            self.streaks = [0] * len(self.rules)


def _saver(trainer: Trainer) -> IterationCheckpoint | None:
    found = [c for c in trainer.callbacks if isinstance(c, IterationCheckpoint)]  # type: ignore[attr-defined]
    return found[0] if found else None
