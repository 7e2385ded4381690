"""One optimizer over policy and critic, and the learning rate over updates."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy

from rlzoo.errors import UserError
from rlzoo.strategies.master_weights import with_masters
from rlzoo.training.settings import Settings


def build_optimizer(settings: Settings, trainer: Any) -> Any:
    """Return the optimizer and its schedule, in the form Lightning asks for.

    DeepSpeed allows one optimizer, so the critic is a parameter group with a rate of its own.

    Args:
        settings: Those of the run, its models loaded.
        trainer: Lightning's.

    Returns:
        Lists of one optimizer and one scheduler, which is stepped once per update.

    Raises:
        UserError: If the optimizer refuses a setting.
    """
    parts = [(_trainable(settings.policy), 1.0)]
    if settings.critic is not None:
        parts.append((_trainable(settings.critic), settings.critic.lr_scale))
    split = getattr(trainer.strategy, "split", lambda group: [group])
    scaled = [(group, scale) for p, scale in parts for group in split({"params": p})]
    make: Any = settings.optimizer
    strategy = trainer.strategy
    whole = isinstance(strategy, SingleDeviceStrategy | DDPStrategy)
    if whole and not isinstance(strategy, DeepSpeedStrategy):  # which keeps masters by itself
        make = partial(with_masters, make)
    try:
        optimizer = make([group for group, _ in scaled])
    except (TypeError, ValueError) as error:
        raise UserError(f"model.optimizer refuses its settings: {error}") from error
    for group, (_, scale) in zip(optimizer.param_groups, scaled, strict=True):
        group["lr"] *= scale
    total = total_updates(settings, trainer)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: settings.schedule.factor(update, total)
    )
    return [optimizer], [schedule]


def total_updates(settings: Settings, trainer: Any) -> float:
    """Return the optimizer steps of the whole run; infinity where no schedule needs it.

    Raises:
        UserError: If a decaying schedule has no end to decay to.
    """
    if settings.schedule.decay == "constant":
        return float("inf")
    # Lightning's estimate is the smaller of batches, of which each has several updates here, and
    # max_steps, which counts updates: it says which of the two only where batches are fewer.
    total = float(trainer.estimated_stepping_batches) * settings.updates_per_iteration
    if trainer.max_steps >= 0:
        total = min(total, float(trainer.max_steps))
    if total == float("inf"):
        raise UserError(
            f"model.schedule.decay {settings.schedule.decay} needs an end; set trainer.max_epochs"
        )
    return total


def _trainable(part: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in part.parameters() if p.requires_grad]
