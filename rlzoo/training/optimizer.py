"""One optimizer over policy and critic, and the learning rate over updates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy

from rlzoo.errors import UserError
from rlzoo.strategies.master_weights import with_masters

if TYPE_CHECKING:
    from rlzoo.training.module import RLModule


def build_optimizer(module: RLModule) -> Any:
    """Return the optimizer and its schedule, in the form Lightning asks for.

    DeepSpeed allows one optimizer, so the critic is a parameter group with a rate of its own.

    Args:
        module: After ``configure_model``.

    Returns:
        Lists of one optimizer and one scheduler, which is stepped once per update.

    Raises:
        UserError: If the optimizer refuses a setting.
    """
    parts = [(_trainable(module.policy), 1.0)]
    if module.critic is not None:
        parts.append((_trainable(module.critic), module.critic.lr_scale))
    split = getattr(module.trainer.strategy, "split", lambda group: [group])
    scaled = [(group, scale) for p, scale in parts for group in split({"params": p})]
    make, strategy = module.make_optimizer, module.trainer.strategy
    whole = isinstance(strategy, SingleDeviceStrategy | DDPStrategy)
    if whole and not isinstance(strategy, DeepSpeedStrategy):  # which keeps masters by itself
        make = partial(with_masters, make)
    try:
        optimizer = make([group for group, _ in scaled])
    except (TypeError, ValueError) as error:
        raise UserError(f"model.optimizer refuses its settings: {error}") from error
    for group, (_, scale) in zip(optimizer.param_groups, scaled, strict=True):
        group["lr"] *= scale
    total = total_updates(module)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: module.schedule.factor(update, total)
    )
    return [optimizer], [schedule]


def total_updates(module: RLModule) -> float:
    """Return the optimizer steps of the whole run; infinity where no schedule needs it.

    Raises:
        UserError: If a decaying schedule has no end to decay to.
    """
    if module.schedule.decay == "constant":
        return float("inf")
    trainer = module.trainer
    # Lightning counts batches here, unless max_steps, which counts optimizer steps, is set.
    per_batch = 1 if trainer.max_steps > 0 else module.learner.updates_per_iteration
    total = float(trainer.estimated_stepping_batches) * per_batch
    if total == float("inf"):
        raise UserError(
            f"model.schedule.decay {module.schedule.decay} needs an end; set trainer.max_epochs"
        )
    return total


def _trainable(part: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in part.parameters() if p.requires_grad]
