"""Refusals under DeepSpeed: before weights load, and once its engine has started."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import Any, Protocol

import torch
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator

from rlzoo.errors import UserError
from rlzoo.models.moe.policy import num_experts
from rlzoo.strategies.trained import Trained

if not torch.cuda.is_available():  # else DeepSpeed's import prints what it looked for in vain
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


VERSIONS = {"deepspeed": "0.19", "transformers": "5.24"}
"""What the private interfaces used here belong to."""

OURS = {
    "gradient_clipping": "model.max_grad_norm",
    "gradient_accumulation_steps": "model.micro_batch_tokens",
    "managed_gradient_accumulation": "model.micro_batch_tokens",
    "expert_parallel": "ep_size",
    "zero_optimization.stage": "zero_stage",
    "zero_optimization.offload_optimizer": "offload_optimizer",
    "zero_optimization.offload_param": "offload_parameters",
    "optimizer": "model.optimizer",
    "scheduler": "model.schedule",
    "bf16": "model.policy.dtype",
    "fp16": "model.policy.dtype",
}
"""Keys of DeepSpeed's configuration that settings of rlzoo decide."""


class Asked(Protocol):
    """What the strategy was asked to do, and what it runs on."""

    ep_size: int
    zero_stage: int
    offload_parameters: bool
    autoep: dict[str, Any]
    extra: dict[str, Any]
    model: Any

    @property
    def module(self) -> Trained:
        """The module that trains."""

    @property
    def world_size(self) -> int:
        """Processes."""

    @property
    def accelerator(self) -> Any:
        """Lightning's."""

    @property
    def precision_plugin(self) -> Any:
        """Lightning's."""


def check_installed() -> None:
    """Refuse a missing DeepSpeed, and versions whose private interfaces are not those used here.

    Raises:
        UserError: Naming what to install.
    """
    if importlib.util.find_spec("deepspeed") is None:  # importing it would print a warning
        raise UserError(
            "trainer.strategy DeepSpeedExpertParallelStrategy needs: "
            "pip install 'rlzoo-lightning[deepspeed]'"
        )
    for name, wanted in VERSIONS.items():
        found = importlib.metadata.version(name)
        if not found.startswith(wanted + "."):
            raise UserError(
                f"trainer.strategy DeepSpeedExpertParallelStrategy is made for {name} {wanted}.* "
                f"and {found} is installed; pip install '{name}=={wanted}.*'"
            )


def check_run(strategy: Asked) -> None:
    """Refuse a run that this strategy cannot do, before weights load.

    Raises:
        UserError: Naming the setting, its value and the remedy.
    """
    _check_arguments(strategy)
    module, size, world = strategy.module, strategy.ep_size, strategy.world_size
    if not isinstance(strategy.accelerator, CUDAAccelerator | CPUAccelerator):
        raise UserError("trainer.strategy DeepSpeed runs on cuda or cpu; set trainer.accelerator")
    precision = str(strategy.precision_plugin.precision)
    if precision != "32-true":
        raise UserError(
            f"trainer.precision {precision} cannot act under DeepSpeed; set model.policy.dtype to "
            "bfloat16, of which it keeps float32 masters"
        )
    if module.policy.dtype == "bfloat16" and module.critic is not None:
        raise UserError(
            "model.policy.dtype bfloat16 with a critic: DeepSpeed would cast the value head too; "
            "set it to float32, or use an advantage by group"
        )
    if size > 1:
        _check_experts(module, size)
        if world % size:
            raise UserError(
                f"trainer.strategy ep_size {size} does not divide {world} processes "
                "(trainer.devices * trainer.num_nodes)"
            )


def _check_experts(module: Trained, size: int) -> None:
    implementation = getattr(module.policy, "experts_implementation", "auto")
    if implementation not in ("auto", "grouped_mm"):
        raise UserError(
            f"model.policy.experts_implementation {implementation} cannot act on sharded experts; "
            "set it to auto, or ep_size to 1"
        )
    if getattr(module.policy, "router_fp32", False):
        raise UserError("model.policy.router_fp32 cannot act on sharded experts; set ep_size to 1")
    if module.policy.lora is not None:
        raise UserError("model.policy.lora cannot train sharded experts; set ep_size to 1")
    module.policy.check()
    if not module.policy.source.pending_gguf():
        count = num_experts(module.policy.source.hf_config.get_text_config())
        if count == 0 or count % size:
            raise UserError(
                f"trainer.strategy ep_size {size} does not divide the {count} experts of "
                "model.policy; use a divisor, or 1"
            )


def _check_arguments(strategy: Asked) -> None:
    stage, size, config = strategy.zero_stage, strategy.ep_size, strategy.extra
    if stage not in (1, 2, 3):
        raise UserError(
            f"trainer.strategy zero_stage {stage} is not 1, 2 or 3; stage 0 would clip sharded "
            "experts by a norm that is only approximate"
        )
    if size < 1:
        raise UserError(f"trainer.strategy ep_size must be >= 1, got {size}")
    if strategy.autoep and size == 1:
        raise UserError("trainer.strategy autoep has no effect with ep_size 1; remove it")
    if strategy.offload_parameters and stage < 3:
        raise UserError(
            f"trainer.strategy offload_parameters has no effect with zero_stage {stage}; set it to "
            "3, or remove offload_parameters"
        )
    zero = config.get("zero_optimization", {})
    for key in [*config, *(f"zero_optimization.{key}" for key in zero)]:
        if key in OURS:
            raise UserError(f"trainer.strategy config.{key} cannot act here; set {OURS[key]}")


def check_engine(strategy: Asked) -> None:
    """Make sure that clipping and accumulation are what the settings say.

    Raises:
        UserError: Naming what differs.
    """
    engine: Any = strategy.model
    facts = {
        "zero_stage": (engine.zero_optimization_stage(), strategy.zero_stage),
        "gradient_clipping": (engine.gradient_clipping(), strategy.module.settings.max_grad_norm),
        "managed_gradient_accumulation": (engine.managed_gradient_accumulation(), False),
        "gradient_accumulation_steps": (engine.gradient_accumulation_steps(), 1),
    }
    for name, (found, wanted) in facts.items():
        if found != wanted:
            raise UserError(
                f"trainer.strategy: DeepSpeed runs with {name} {found} and not {wanted}; remove it "
                "from trainer.strategy config and PL_DEEPSPEED_CONFIG_PATH"
            )
