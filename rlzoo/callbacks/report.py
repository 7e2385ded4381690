"""What a person sees of a run: progress, samples, a picture, a summary."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from rlzoo.callbacks.checkpoint import IterationCheckpoint, run_folder
from rlzoo.callbacks.expert_loads import write_loads
from rlzoo.callbacks.plots import plot_rewards
from rlzoo.display.json_files import append_json_line, write_json
from rlzoo.display.tables import show
from rlzoo.errors import UserError
from rlzoo.training.startup import total_iterations

log = logging.getLogger("rlzoo")

MOSTLY_CLIPPED = 0.5
LIBRARIES = ("rlzoo-lightning", "torch", "lightning", "transformers", "numpy")


def append(folder: Path, values: dict[str, float]) -> None:
    """Add a line to the run's metrics.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    append_json_line(folder / "metrics.jsonl", values)


class Report(Callback):
    """Prints progress and sample answers; at the end writes reward.png and summary.json.

    Every iteration's metrics also go to ``metrics.jsonl``, a line each.

    Args:
        every_n_iterations: Distance between progress lines.
        samples_every_n_iterations: Distance between tables of sample answers; 0 prints one only at
            the end.
        samples: Answers per table.
    """

    def __init__(
        self, every_n_iterations: int = 5, samples_every_n_iterations: int = 0, samples: int = 6
    ) -> None:
        if every_n_iterations < 1:
            raise UserError(f"report.every_n_iterations must be >= 1, got {every_n_iterations}")
        if samples_every_n_iterations < 0 or samples < 0:
            raise UserError("report: samples_every_n_iterations and samples must be >= 0")
        self.every_n_iterations = every_n_iterations
        self.samples_every_n_iterations = samples_every_n_iterations
        self.samples = samples
        self.clipped = 0
        self.first_rollouts: str | None = None
        self.folder = Path()
        self.rewards: list[tuple[int, float]] = []
        self.held_out: list[tuple[int, dict[str, float]]] = []
        self.seconds: dict[str, float] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn where the run's files go."""
        self.folder = run_folder(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how held-out prompts are answered."""
        module: Any = pl_module
        if trainer.sanity_checking:
            values = module.before
        else:
            values = {
                k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")
            }
        if not values:
            return
        done = int(module.progress["iterations"])
        self.held_out = [*(pair for pair in self.held_out if pair[0] != done), (done, dict(values))]
        if trainer.is_global_zero:
            append(self.folder, {"iteration": done, **values})
            when = "before training" if done == 0 else f"after iteration {done}"
            numbers = "  ".join(f"{k.removeprefix('val/')} {v:.3f}" for k, v in values.items())
            log.info("held-out, %s: %s", when, numbers)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Say how the iteration went."""
        module: Any = pl_module
        done, metrics = int(module.progress["iterations"]), trainer.callback_metrics
        self.rewards.append((done, float(metrics.get("reward/mean", float("nan")))))
        if done == 1:
            ids = module.last_rollouts[0].token_ids.cpu().numpy()
            self.first_rollouts = hashlib.sha256(ids.tobytes()).hexdigest()[:16]
        if not trainer.is_global_zero:
            return
        values = {k: float(v) for k, v in metrics.items() if not k.startswith("val/")}
        for part, seconds in seconds_by_part(values).items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        append(self.folder, {"iteration": done, **values})
        self.warn_of_clipping(done, values.get("policy/clip_fraction", 0.0))
        if done == 1 or done % self.every_n_iterations == 0:
            write_loads(self.folder, module.learner.experts, done)
        if done % self.every_n_iterations == 0:
            log.info(
                "iteration %d/%s  reward %.3f  clip %.4f  length %.1f  tokens/s %.0f  (%s)",
                done,
                total_iterations(module.settings, trainer) or "endless",
                metrics["reward/mean"],
                metrics["policy/clip_fraction"],
                metrics["rollout/length"],
                metrics["tokens/per_s"],
                time_shares(seconds_by_part(values)),
            )
        every = self.samples_every_n_iterations
        if every and done % every == 0:
            self.show_samples(trainer, module, done)

    def warn_of_clipping(self, done: int, fraction: float) -> None:
        """Warn, once, if most tokens lose their gradient to the clip for ten iterations on end."""
        self.clipped = self.clipped + 1 if fraction > MOSTLY_CLIPPED else 0
        if self.clipped == 10:
            log.warning(
                "iteration %d: for ten iterations over half of the tokens were clipped; the band "
                "is narrower than the noise of the ratio (GSPO's falls as 1/sqrt(length)): "
                "widen clip_low and clip_high, or take smaller steps",
                done,
            )

    def show_samples(self, trainer: Trainer, module: Any, done: int) -> None:
        """Print a table of answers with their rewards, and log it as text."""
        if module.last_rollouts is None or not self.samples:
            return
        rollouts, rewards = module.last_rollouts
        names = module.runner.names
        table = []
        lines = ["| prompt | answer given | expected | " + " | ".join(names) + " |"]
        lines.append("|---" * (3 + len(names)) + "|")
        step = max(1, len(rollouts) // self.samples)
        for row in range(0, len(rollouts), step)[: self.samples]:
            prompt = rollouts.prompt(row)
            given = rollouts.completions[row] + ("" if rollouts.terminated[row] else " [cut]")
            shown = ["-" if x is None else f"{x:.3g}" for x in rewards.table[row]]
            cells = [_short(prompt.text), _short(given), _short(prompt.target), *shown]
            table.append(cells)
            lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        show(f"answers at iteration {done}", ("prompt", "answer given", "expected", *names), table)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("samples", "\n".join(lines), done)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the picture and the summary, and say where everything is."""
        module: Any = pl_module
        done = int(module.progress["iterations"])
        if trainer.val_dataloaders is not None or getattr(trainer, "datamodule", None) is not None:
            self.evaluate_last(trainer, module, done)
        folder = self.folder
        if not trainer.is_global_zero:
            return
        self.show_samples(trainer, module, done)
        folder.mkdir(parents=True, exist_ok=True)
        write_loads(folder, module.learner.experts, done)
        summary = self.summary(module)
        write_json(folder / "summary.json", summary)
        curves = {"held-out accuracy, sampled": "val/accuracy", "greedy": "val/greedy"}
        plot_rewards(
            folder / "reward.png",
            self.rewards,
            {
                name: [(i, v[key]) for i, v in self.held_out if key in v]
                for name, key in curves.items()
                if any(key in v for _, v in self.held_out)
            },
            f"{summary['algorithm']}, {done} iterations, seed {summary['seed']}",
        )
        kept = [c for c in trainer.checkpoint_callbacks if isinstance(c, IterationCheckpoint)]
        for line in closing(summary, folder, saved=any(c.dirpath is None for c in kept)):
            log.info(line)

    def evaluate_last(self, trainer: Trainer, module: Any, done: int) -> None:
        """Evaluate the final weights unless the last validation already did."""
        if any(i == done for i, _ in self.held_out) or not trainer.limit_val_batches:
            return
        for i, batch in enumerate(trainer.datamodule.val_dataloader()):  # type: ignore[attr-defined]
            module.validation_step(batch, i)
        self.held_out.append((done, module.evaluator.compute()))

    def summary(self, module: Any) -> dict[str, Any]:
        """Return the figures of the run."""
        before = module.before or {}
        after = self.held_out[-1][1] if self.held_out else {}
        config = module.run_config or ""
        return {
            "algorithm": type(module.settings.algorithm).__name__,
            "seed": module.settings.seed,
            "accuracy_before": before.get("val/accuracy"),
            "accuracy_after": after.get("val/accuracy"),
            "greedy_before": before.get("val/greedy"),
            "greedy_after": after.get("val/greedy"),
            "iterations": int(module.progress["iterations"]),
            "updates": int(module.progress["updates"]),
            "tokens": int(module.progress["tokens"]),
            "seconds": round(float(module.progress["seconds"]), 3),
            "seconds_by_part": {part: round(s, 3) for part, s in self.seconds.items()},
            "held_out": [{"iteration": i, **values} for i, values in self.held_out],
            "first_rollouts": self.first_rollouts,
            "config_hash": hashlib.sha256(config.encode()).hexdigest()[:16],
            "versions": {name: _version(name) for name in LIBRARIES},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the curves, so that a resumed run draws them whole."""
        return {
            "rewards": self.rewards,
            "held_out": self.held_out,
            "seconds": self.seconds,
            "first_rollouts": self.first_rollouts,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the curves back."""
        self.rewards = [(i, r) for i, r in state_dict["rewards"]]
        self.held_out = [(i, dict(v)) for i, v in state_dict["held_out"]]
        self.seconds = dict(state_dict.get("seconds", {}))
        self.first_rollouts = state_dict.get("first_rollouts")


def seconds_by_part(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return where an iteration's seconds went, the whole left out."""
    parts = {k: v for k, v in metrics.items() if k.startswith("time/") and k.endswith("_s")}
    return {k[len("time/") : -len("_s")]: v for k, v in parts.items() if k != "time/iteration_s"}


def time_shares(seconds: Mapping[str, float]) -> str:
    """Return shares of the time, the largest first, what rounds to nothing left out."""
    whole = max(sum(seconds.values()), 1e-9)
    order = sorted(seconds, key=lambda part: -seconds[part])
    shares = {part: round(100 * seconds[part] / whole) for part in order}
    return ", ".join(f"{part} {share} %" for part, share in shares.items() if share)


def closing(summary: dict[str, Any], folder: Path, *, saved: bool) -> list[str]:
    """Return the last lines of a run: the figures, and where things are.

    Args:
        summary: What ``summary.json`` holds.
        folder: Of the run.
        saved: Whether checkpoints are kept there, the last of which may be yet to come.
    """

    def number(key: str) -> str:
        return "n/a" if summary[key] is None else f"{summary[key]:.3f}"

    rate = summary["tokens"] / max(summary["seconds"], 1e-9)
    there = {"summary": "summary.json", "picture": "reward.png"}
    # A script writes no configuration, and may log elsewhere or nowhere.
    if any(folder.glob("events.*")):
        there["TensorBoard log"] = "events.*"
    if (folder / "config.yaml").exists():
        there["configuration"] = "config.yaml"
    if saved:
        there["checkpoints"] = "checkpoints"
    return [
        f"held-out accuracy: sampled {number('accuracy_before')} -> {number('accuracy_after')}, "
        f"greedy {number('greedy_before')} -> {number('greedy_after')}",
        f"{summary['iterations']} iterations, {summary['updates']} updates, "
        f"{summary['tokens']} tokens in {summary['seconds']:.1f} s ({rate:.0f} tokens/s): "
        + time_shares(summary["seconds_by_part"]),
        f"{', '.join(there)}: {folder}/{{{', '.join(there.values())}}}",
    ]


def _short(text: str, limit: int = 60) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= limit else "..." + text[-limit:]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
