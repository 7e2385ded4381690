"""Refusals before weights load: settings, a trainer or prompts that cannot work."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.strategies import ModelParallelStrategy

from rlzoo.errors import UserError
from rlzoo.objective.corrections import check_corrections
from rlzoo.rollout.base import check_request
from rlzoo.training.control import check_control
from rlzoo.training.minibatches import check_divisible
from rlzoo.training.settings import Settings
from rlzoo.types import Prompts

log = logging.getLogger("rlzoo")

BATCH_FIELDS = {
    "entropy",
    "group_ids",
    "token_ids",
    "ref_log_probs",
    "rollout_log_probs",
}
"""Optional fields of a PolicyBatch that the base can supply."""


def check_numbers(**values: float) -> None:
    """Refuse counts below 1.

    Raises:
        UserError: Naming the setting and its value.
    """
    for name, value in values.items():
        if value < 1:
            raise UserError(f"model.{name} must be >= 1, got {value}")


def check_settings(settings: Settings) -> None:
    """Refuse settings that contradict each other or could not act.

    Raises:
        UserError: Naming the setting, its value and the remedy.
    """
    sampling, estimator = settings.sampling, settings.estimator
    check_numbers(
        group_size=settings.group_size,
        epochs=settings.epochs,
        minibatches=settings.minibatches,
        micro_batch_tokens=settings.micro_batch_tokens,
    )
    if sampling.temperature <= 0:
        raise UserError(
            f"model.sampling.temperature {sampling.temperature} must be > 0 for rollouts; greedy "
            "answers are for evaluation (model.evaluation.temperature)"
        )
    if settings.group_size < estimator.minimum_group:
        raise UserError(
            f"model.group_size {settings.group_size} leaves {type(estimator).__name__} without a "
            f"baseline; use at least {estimator.minimum_group}, or model.advantage GAE"
        )
    _check_estimator(settings)
    if settings.critic is not None and not estimator.needs_values:
        raise UserError(
            f"model.critic {type(settings.critic).__name__} has no effect with "
            f"{type(estimator).__name__}; remove it or set model.advantage to GAE"
        )
    if settings.max_grad_norm < 0:
        raise UserError(
            f"model.max_grad_norm must be >= 0 (0 is off), got {settings.max_grad_norm}"
        )
    _check_reference(settings)
    if settings.policy.router.replay == "old-policy" and settings.updates_per_iteration == 1:
        raise UserError(
            "model.policy.replay old-policy has no effect with one update per iteration, whose "
            "routing is the old policy's own; raise model.minibatches or model.epochs, or drop it"
        )
    if settings.policy.router.replay == "rollout" and not settings.sampler.reports_experts:
        raise UserError(
            f"model.policy.replay rollout needs the sampler's experts, which "
            f"{type(settings.sampler).__name__} does not report; use NativeSampler, or old-policy"
        )
    name = type(settings.algorithm).__name__
    if unknown := set(settings.algorithm.needs) - BATCH_FIELDS:
        raise UserError(
            f"{name}.needs names {sorted(unknown)}; the base supplies {sorted(BATCH_FIELDS)}"
        )
    _check_filters(settings)
    check_corrections(settings.corrections, settings.algorithm)
    check_control(settings.control)
    bonus = settings.entropy_coefficient or any(c.setting == "entropy" for c in settings.control)
    skipping = [type(f).__name__ for f in settings.filters if f.skips]
    if skipping and (settings.critic or bonus):
        raise UserError(
            f"model.filters {skipping[0]} would take rows from the critic's or the entropy's mean; "
            "remove it, or the critic and model.entropy_coefficient"
        )


def _check_filters(settings: Settings) -> None:
    """Refuse a filter that draws answers after others have marked those it replaces."""
    draws = [f.draws for f in settings.filters]
    if draws != sorted(draws, reverse=True):
        names = [type(f).__name__ for f in settings.filters]
        drawing = names[max(i for i, each in enumerate(draws) if each)]
        raise UserError(
            f"model.filters {', '.join(names)}: {drawing} puts answers in the place of others, "
            f"which the filters before it would not see; name {drawing} first"
        )


def _check_estimator(settings: Settings) -> None:
    """Refuse an estimator whose numbers the rest of the settings would make meaningless."""
    estimator, objective = type(settings.estimator).__name__, type(settings.algorithm).__name__
    if settings.estimator.per_token and settings.algorithm.one_advantage_per_answer:
        raise UserError(
            f"model.advantage {estimator} gives every token its own advantage, and {objective} "
            "clips whole answers by one advantage each; use model.algorithm GSPOToken, or an "
            "advantage of the answer, such as GroupNormalized"
        )
    if settings.kl.in_reward and not settings.estimator.takes_penalty:
        raise UserError(
            f"model.kl.placement reward would take the KL cost from rewards that {estimator} "
            "needs as they are; set model.kl.placement to loss"
        )
    skipping = [type(f).__name__ for f in settings.filters if f.skips]
    if skipping and not (settings.estimator.by_group or settings.critic):
        raise UserError(
            f"model.filters {skipping[0]} would skip answers to which {estimator} gives an "
            "advantage that is not 0; remove it, or use an estimator by group, such as "
            "GroupNormalized"
        )


def _check_reference(settings: Settings) -> None:
    if settings.kl.coefficient > 0 and settings.reference == "none":
        raise UserError(
            f"model.kl.coefficient {settings.kl.coefficient} needs model.reference; set it to "
            "initial, adapter_base or a folder"
        )
    if "ref_log_probs" in settings.algorithm.needs and settings.reference == "none":
        raise UserError(
            f"{type(settings.algorithm).__name__} reads ref_log_probs; set model.reference"
        )
    if settings.reference == "adapter_base" and settings.policy.lora is None:
        raise UserError(
            "model.reference adapter_base needs a LoRA policy; set model.policy.lora, or use "
            "model.reference initial"
        )


def check_trainer(settings: Settings, trainer: Any) -> None:
    """Refuse trainer and data settings that do not fit, before any weights are loaded.

    Raises:
        UserError: Naming the setting, its value and the remedy.
    """
    check_precision(trainer.precision)
    if isinstance(trainer.precision_plugin, HalfPrecision):
        raise UserError(
            f"trainer.precision {trainer.precision} rounds the critic and every optimizer step; "
            "set model.policy.dtype to bfloat16, which trains float32 values, or use bf16-mixed"
        )
    if isinstance(trainer.strategy, ModelParallelStrategy):
        check_fsdp2_dtype(settings.policy.dtype)
    if trainer.strategy.root_device.type == "mps":
        raise UserError(
            "trainer.accelerator mps lacks float64, which sums and statistics are kept in; set "
            "trainer.accelerator to cpu"
        )
    strategy: Any = trainer.strategy
    sharded = getattr(strategy, "sharded", False) or getattr(strategy, "zero_stage", 0) == 3
    settings.sampler.check(settings.policy, trainer.world_size, sharded=sharded)
    data: Any = getattr(trainer, "datamodule", None)
    prompts = getattr(data, "prompts_per_iteration", None)
    if prompts is not None:
        check_divisible(prompts, settings.group_size, settings.minibatches, trainer.world_size)
    drawing = [type(f).__name__ for f in settings.filters if f.draws]
    if drawing and not hasattr(data, "reserve"):
        raise UserError(
            f"model.filters {drawing[0]} needs a source of fresh prompts; train with "
            "PromptDataModule"
        )
    _check_unit(settings, prompts, trainer.world_size)
    if settings.cold_start is not None and not hasattr(data, "task"):
        raise UserError(
            "model.cold_start needs a task that gives demonstrations; train with PromptDataModule"
        )
    if prompts is not None:
        _check_prompts(settings, trainer, data)


def _check_unit(settings: Settings, prompts: int | None, world_size: int) -> None:
    name = type(settings.algorithm).__name__
    if settings.algorithm.unit == "row":
        return
    if prompts is not None and prompts % settings.minibatches:
        raise UserError(
            f"model.minibatches {settings.minibatches} would cut groups, which {name} needs whole; "
            f"use a divisor of data.prompts_per_iteration {prompts}"
        )
    if settings.algorithm.unit != "minibatch":
        return
    if world_size > 1:
        raise UserError(
            f"{name} takes statistics over a whole optimizer step and runs in one process; "
            f"trainer.devices * num_nodes is {world_size}, set it to 1"
        )
    if skipping := [type(f).__name__ for f in settings.filters if f.skips]:
        raise UserError(
            f"model.filters {skipping[0]} would take rows from the statistics of {name}; remove it"
        )


def check_fsdp2_dtype(dtype: str) -> None:
    """Refuse half-precision weights under FSDP2, where nothing holds them in float32.

    Raises:
        UserError: Naming what to set.
    """
    if dtype != "float32":
        raise UserError(
            f"model.policy.dtype {dtype} under trainer.strategy fsdp2 has no float32 copies, so "
            "that small steps are lost; set it to float32, and trainer.precision to bf16-mixed"
        )


def check_precision(precision: object) -> None:
    """Refuse float16 mixed precision.

    Raises:
        UserError: Naming what can be used.
    """
    if str(precision) in ("16", "16-mixed"):
        raise UserError(
            f"trainer.precision {precision} needs a loss scaler, which manual optimization "
            "does not drive; use bf16-mixed or 32-true"
        )


def _check_prompts(settings: Settings, trainer: Any, data: Any) -> None:
    rows = (*data.train_prompts, *data.eval_prompts)
    everything = Prompts(rows, tuple(range(len(rows))))
    check_request(settings.policy, everything, settings.group_size, settings.sampling)
    if len(data.eval_prompts) < trainer.world_size:
        raise UserError(
            f"data: {len(data.eval_prompts)} held-out prompts do not cover {trainer.world_size} "
            "processes; raise data.eval_size"
        )
    every = trainer.val_check_interval
    batches = len(data.train_prompts) // data.prompts_per_iteration
    limit = trainer.limit_train_batches
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    if isinstance(every, int) and trainer.check_val_every_n_epoch and 0 < batches < every:
        raise UserError(
            f"trainer.val_check_interval {every} is more than the {batches} iterations of an "
            "epoch; lower it, or set trainer.check_val_every_n_epoch to null"
        )
