"""A copy of what a run has learned, to go back to."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Snapshot:
    """Weights, moments, schedule and control after an iteration, on the CPU.

    Attributes:
        iteration: Iterations that were done.
        seen: Length of the monitor's history.
        weights: Trainable weights and buffers, by name.
        optimizer: State of the optimizer.
        scheduler: State of the schedule.
        control: State of the moving coefficients.
    """

    iteration: int
    seen: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    control: dict[str, Any]

    @classmethod
    def take(cls, module: Any, seen: int) -> Snapshot:
        """Copy the state of a run."""
        return cls(
            iteration=int(module.progress["iterations"]),
            seen=seen,
            weights={name: _copied(x) for name, x in _live(module).items()},
            optimizer=_copied(optimizer_of(module).state_dict()),
            scheduler=_copied(_scheduler(module).state_dict()),
            control=_copied(module.learner.control_state()),
        )

    def scale(self, factor: float) -> None:
        """Multiply the learning rates, so that every later return to this state has them too."""
        for group in self.optimizer["param_groups"]:
            for name in ("lr", "initial_lr"):
                group[name] = group[name] * factor
        for name in ("base_lrs", "_last_lr"):
            self.scheduler[name] = [rate * factor for rate in self.scheduler[name]]

    def restore(self, module: Any) -> None:
        """Put the state back; counters, prompts and random states go on."""
        with torch.no_grad():
            for name, value in _live(module).items():
                value.copy_(self.weights[name])
        # Loading may take the tensors themselves, which the next step would change in place.
        optimizer_of(module).load_state_dict(_copied(self.optimizer))
        _scheduler(module).load_state_dict(copy.deepcopy(self.scheduler))
        module.learner.load_control_state(self.control)


def _live(module: Any) -> dict[str, Tensor]:
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return trained | dict(module.named_buffers())


def optimizer_of(module: Any) -> Any:
    """Return the one optimizer of a run, as torch made it."""
    return module.trainer.optimizers[0]


def _scheduler(module: Any) -> Any:
    return module.trainer.lr_scheduler_configs[0].scheduler


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(x) for key, x in value.items()}
    return [_copied(x) for x in value] if isinstance(value, list) else copy.deepcopy(value)
