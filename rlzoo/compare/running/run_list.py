"""The list of a comparison's runs: every setting checked, a common length, a folder each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlzoo.compare.running import matrix
from rlzoo.compare.running.matrix import Cell, ComparisonConfig
from rlzoo.compare.running.run_process import RunProcess, flat_settings
from rlzoo.errors import UserError

ReadSettings = Callable[[list[str]], dict[str, Any]]
"""Turns arguments of ``rlzoo fit`` into all settings, or refuses them."""
LOGGER = "lightning.pytorch.loggers.TensorBoardLogger"


def length(wanted: int | None, settings: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Return the options that give runs a length, and the iterations they then have.

    Args:
        wanted: Iterations; those of the settings if none.
        settings: All settings of a run.

    Returns:
        Dotted keys and values; the iterations, None if only the data can tell.

    Raises:
        UserError: If the wanted iterations are no equal passes, or the settings have no end.
    """
    trainer, data = settings["trainer"], settings["data"]
    size, batch = data.get("train_size"), data["prompts_per_iteration"]
    one_pass = size // batch if size else None
    if wanted is None:
        epochs, limit = trainer.get("max_epochs"), trainer.get("limit_train_batches", 1.0)
        if trainer.get("max_steps", -1) >= 0:
            return {}, None
        if epochs is None or epochs < 0:
            raise UserError("iterations: the base has no end; set iterations, or its max_epochs")
        if one_pass is None:
            return {}, None
        in_pass = min(limit, one_pass) if isinstance(limit, int) else int(limit * one_pass)
        return {}, epochs * in_pass
    every = trainer.get("val_check_interval")
    part = wanted
    if one_pass is not None and wanted > one_pass:
        part = max(n for n in range(1, one_pass + 1) if wanted % n == 0)
        if isinstance(every, int) and part < every:
            passes = wanted // one_pass
            raise UserError(
                f"iterations {wanted}: no whole number of equal passes over data.train_size {size};"
                f" use {passes * one_pass} or {(passes + 1) * one_pass}, or raise data.train_size"
            )
    options = {"trainer.max_epochs": wanted // part, "trainer.limit_train_batches": part}
    if isinstance(every, int) and every > part:
        options["trainer.val_check_interval"] = part
    return options, wanted


def list_runs(comparison: ComparisonConfig, settle: ReadSettings) -> list[RunProcess]:
    """Return the runs of a comparison, every setting checked.

    Args:
        comparison: What is compared.
        settle: Turns the arguments of a run into its settings.

    Returns:
        Runs, with what their folders say of them.

    Raises:
        UserError: If one could not run.
    """
    lengths: dict[str, tuple[dict[str, Any], int | None]] = {}
    settled: dict[str, dict[str, Any]] = {}
    runs = []
    for cell in matrix.cells(comparison):
        own = {**comparison.overrides, **cell.algorithm.overrides, **cell.axes}
        key = f"{cell.config} {own}"
        if key not in lengths:
            settings = settle(_arguments(cell, {}))
            options, iterations = length(comparison.iterations, settings)
            if settings["checkpoint"]["keep_last"] < 2 and "checkpoint.keep_last" not in own:
                options = {**options, "checkpoint.keep_last": 2}  # one may be half written
            if comparison.threads is not None:
                options = {**options, "threads": comparison.threads}
            lengths[key] = {**options, "checkpoint.dirpath": None}, iterations
        options, iterations = lengths[key]
        if cell.variant not in settled:
            settled[cell.variant] = settle(_arguments(cell, options))
        settings = settled[cell.variant]
        parts = [settings["model"].get("policy"), settings["data"].get("task")]
        cold = settings["model"].get("cold_start")
        place = {"save_dir": comparison.output_dir, "name": "runs", "version": cell.slug}
        options = {
            **options,
            "trainer.enable_progress_bar": False,
            "trainer.logger": {"class_path": LOGGER, "init_args": place},
        }
        runs.append(
            RunProcess(
                cell,
                _arguments(cell, options),
                {**flat_settings(settings), "seed_everything": cell.seed},
                iterations,
                json.dumps([cold, *parts]) if cold else None,
                Path(comparison.output_dir) / "runs" / cell.slug,
            )
        )
    return runs


def _arguments(cell: Cell, options: dict[str, Any]) -> list[str]:
    pairs = [("seed_everything", cell.seed), *cell.options, *options.items()]
    texts = [(key, v if isinstance(v, str) else json.dumps(v)) for key, v in pairs]
    return ["--config", cell.config, *(f"--{key}={text}" for key, text in texts)]


def first_rollouts(runs: Sequence[RunProcess]) -> dict[str, Any]:
    """Say whether objectives began with the same answers, for each seed and point of the axes.

    Returns:
        ``identical``, None where nothing can be compared, and the hashes of each group.
    """
    groups: dict[str, dict[str, Any]] = {}
    for run in runs:
        axes, seed = run.cell.axes, run.cell.seed
        group = groups.setdefault(
            f"{seed} {axes}", {"seed": seed, "axes": axes, "identical": None, "hashes": {}}
        )
        if digest := run.summary("first_rollouts"):
            group["hashes"][run.cell.slug] = digest
    for group in groups.values():
        if len(group["hashes"]) > 1:
            group["identical"] = len(set(group["hashes"].values())) == 1
    verdicts = [g["identical"] for g in groups.values() if g["identical"] is not None]
    return {"identical": all(verdicts) if verdicts else None, "groups": list(groups.values())}
