"""What is refused before weights load, and what is said and verified at the start of a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.strategies import ModelParallelStrategy

from rlzoo.errors import UserError
from rlzoo.objective.corrections import check_corrections
from rlzoo.rollout.base import check_request
from rlzoo.training.control import check_control
from rlzoo.training.minibatches import check_divisible
from rlzoo.types import Prompts

if TYPE_CHECKING:
    from rlzoo.training.module import RLModule

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


def check_settings(module: RLModule) -> None:
    """Refuse settings that contradict each other or could not act.

    Raises:
        UserError: Naming the setting, its value and the remedy.
    """
    learner, sampling = module.learner, module.sampling
    check_numbers(
        group_size=module.group_size,
        epochs=learner.epochs,
        minibatches=learner.minibatches,
        micro_batch_tokens=learner.micro_batch_tokens,
    )
    if sampling.temperature <= 0:
        raise UserError(
            f"model.sampling.temperature {sampling.temperature} must be > 0 for rollouts; greedy "
            "answers are for evaluation (model.evaluation.temperature)"
        )
    estimator = learner.advantage
    if module.group_size < estimator.minimum_group:
        raise UserError(
            f"model.group_size {module.group_size} leaves {type(estimator).__name__} without a "
            f"baseline; use at least {estimator.minimum_group}, or model.advantage GAE"
        )
    _check_estimator(module)
    if learner.critic is not None and not estimator.needs_values:
        raise UserError(
            f"model.critic {type(learner.critic).__name__} has no effect with "
            f"{type(estimator).__name__}; remove it or set model.advantage to GAE"
        )
    if module.max_grad_norm < 0:
        raise UserError(f"model.max_grad_norm must be >= 0 (0 is off), got {module.max_grad_norm}")
    _check_reference(module)
    if learner.policy.router.replay == "old-policy" and learner.updates_per_iteration == 1:
        raise UserError(
            "model.policy.replay old-policy has no effect with one update per iteration, whose "
            "routing is the old policy's own; raise model.minibatches or model.epochs, or drop it"
        )
    if learner.policy.router.replay == "rollout" and not module.sampler.reports_experts:
        raise UserError(
            f"model.policy.replay rollout needs the sampler's experts, which "
            f"{type(module.sampler).__name__} does not report; use NativeSampler, or old-policy"
        )
    name = type(learner.algorithm).__name__
    if unknown := set(learner.algorithm.needs) - BATCH_FIELDS:
        raise UserError(
            f"{name}.needs names {sorted(unknown)}; the base supplies {sorted(BATCH_FIELDS)}"
        )
    check_corrections(learner.corrections, learner.algorithm)
    check_control(learner.control)
    bonus = learner.entropy_coefficient or any(c.setting == "entropy" for c in learner.control)
    if learner.drop_zero_advantage and (learner.critic or bonus):
        raise UserError(
            "model.drop_zero_advantage would take rows from the critic's or the entropy's mean; "
            "remove it, or the critic and model.entropy_coefficient"
        )


def _check_estimator(module: RLModule) -> None:
    """Refuse an estimator whose numbers the rest of the settings would make meaningless."""
    learner = module.learner
    estimator, objective = type(learner.advantage).__name__, type(learner.algorithm).__name__
    if learner.advantage.per_token and learner.algorithm.one_advantage_per_answer:
        raise UserError(
            f"model.advantage {estimator} gives every token its own advantage, and {objective} "
            "clips whole answers by one advantage each; use model.algorithm GSPOToken, or an "
            "advantage of the answer, such as GroupNormalized"
        )
    if learner.kl.in_reward and not learner.advantage.takes_penalty:
        raise UserError(
            f"model.kl.placement reward would take the KL cost from rewards that {estimator} "
            "needs as they are; set model.kl.placement to loss"
        )
    if learner.drop_zero_advantage and not (learner.advantage.by_group or learner.critic):
        raise UserError(
            f"model.drop_zero_advantage would drop answers to which {estimator} gives an advantage "
            "that is not 0; remove it, or use an estimator by group, such as GroupNormalized"
        )


def _check_reference(module: RLModule) -> None:
    learner = module.learner
    if learner.kl.coefficient > 0 and not learner.reference:
        raise UserError(
            f"model.kl.coefficient {learner.kl.coefficient} needs model.reference; set it to "
            "initial, adapter_base or a folder"
        )
    if "ref_log_probs" in learner.algorithm.needs and not learner.reference:
        raise UserError(
            f"{type(learner.algorithm).__name__} reads ref_log_probs; set model.reference"
        )
    if learner.reference.source == "adapter_base" and learner.policy.lora is None:
        raise UserError(
            "model.reference adapter_base needs a LoRA policy; set model.policy.lora, or use "
            "model.reference initial"
        )


def check_trainer(module: RLModule) -> None:
    """Refuse trainer and data settings that do not fit, before any weights are loaded.

    Raises:
        UserError: Naming the setting, its value and the remedy.
    """
    trainer = module.trainer
    check_precision(trainer.precision)
    if isinstance(trainer.precision_plugin, HalfPrecision):
        raise UserError(
            f"trainer.precision {trainer.precision} rounds the critic and every optimizer step; "
            "set model.policy.dtype to bfloat16, which trains float32 values, or use bf16-mixed"
        )
    if isinstance(trainer.strategy, ModelParallelStrategy):
        check_fsdp2_dtype(module.policy.dtype)
    if trainer.strategy.root_device.type == "mps":
        raise UserError(
            "trainer.accelerator mps lacks float64, which sums and statistics are kept in; set "
            "trainer.accelerator to cpu"
        )
    strategy: Any = trainer.strategy
    spread = getattr(strategy, "spread", False) or getattr(strategy, "zero_stage", 0) == 3
    module.sampler.check(module.policy, trainer.world_size, spread=spread)
    data: Any = getattr(trainer, "datamodule", None)
    prompts = getattr(data, "prompts_per_iteration", None)
    if prompts is not None:
        check_divisible(prompts, module.group_size, module.learner.minibatches, trainer.world_size)
    if module.dynamic_sampling is not None and not hasattr(data, "reserve"):
        raise UserError(
            "model.dynamic_sampling needs a source of fresh prompts; train with PromptDataModule"
        )
    _check_unit(module, prompts)
    if module.cold_start is not None and not hasattr(data, "task"):
        raise UserError(
            "model.cold_start needs a task that gives demonstrations; train with PromptDataModule"
        )
    if prompts is not None:
        _check_prompts(module, data)


def _check_unit(module: RLModule, prompts: int | None) -> None:
    learner, name = module.learner, type(module.learner.algorithm).__name__
    if learner.algorithm.unit == "row":
        return
    if prompts is not None and prompts % learner.minibatches:
        raise UserError(
            f"model.minibatches {learner.minibatches} would cut groups, which {name} needs whole; "
            f"use a divisor of data.prompts_per_iteration {prompts}"
        )
    if learner.algorithm.unit != "minibatch":
        return
    if module.trainer.world_size > 1:
        raise UserError(
            f"{name} takes statistics over a whole optimizer step and runs in one process; "
            f"trainer.devices * num_nodes is {module.trainer.world_size}, set it to 1"
        )
    if learner.drop_zero_advantage:
        raise UserError(
            f"model.drop_zero_advantage would take rows from the statistics of {name}; remove it"
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
            f"trainer.precision {precision} needs a loss scaler, which manual optimisation "
            "does not drive; use bf16-mixed or 32-true"
        )


def _check_prompts(module: RLModule, data: Any) -> None:
    trainer = module.trainer
    rows = (*data.train_prompts, *data.eval_prompts)
    everything = Prompts(rows, tuple(range(len(rows))))
    check_request(module.policy, everything, module.group_size, module.sampling)
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
