"""DeepSpeed under manual optimization: ZeRO 1 to 3, and experts sharded over processes."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from typing_extensions import override

from rlzoo.errors import UserError
from rlzoo.models.moe.policy import MoEPolicy
from rlzoo.strategies.deepspeed import autoep
from rlzoo.strategies.deepspeed.checkpoints import (
    WEIGHTS,
    WHOLE,
    check_shard_map,
    checkpoint_file,
    whole_policy,
    write_shard_map,
)
from rlzoo.strategies.deepspeed.checks import check_engine, check_installed, check_run
from rlzoo.strategies.deepspeed.gate_hooks import watch_sharded
from rlzoo.strategies.deepspeed.precision import WeightsAsLoaded
from rlzoo.strategies.trained import Trained

log = logging.getLogger("rlzoo")


class DeepSpeedExpertParallelStrategy(DeepSpeedStrategy):
    """DeepSpeed ZeRO for any policy, with the experts of a mixture sharded over processes.

    Every block of experts keeps ``num_experts / ep_size`` of them per process; tokens travel to
    theirs and back by all-to-all. Gradients of dense weights are summed over all processes, those
    of experts over the processes that hold the same ones. Loss, gradients and their norm are those
    of one process on all rows. Needs the `deepspeed` extra; runs on CUDA, and on CPU with gloo.

    Args:
        ep_size: Processes that share one set of experts; 1 shards none. Neighboring ranks form
            such a set, so it should fit into a node. Must divide experts and processes.
        zero_stage: 1 cuts up optimizer states, 2 gradients as well, 3 weights as well. Experts are
            cut up over the processes that hold the same ones.
        offload_optimizer: Keep optimizer states in CPU memory.
        offload_parameters: Keep weights in CPU memory; stage 3 only.
        full_weights: Write the whole policy into every checkpoint, so that generate, inspect and
            export can read it; costs its size on disk and on the first process.
        autoep: Further keys of DeepSpeed's ``expert_parallel``.
        config: Further keys of DeepSpeed's configuration.
        **kwargs: Arguments of Lightning's DeepSpeedStrategy.
    """

    def __init__(
        self,
        ep_size: int = 1,
        zero_stage: Literal[1, 2, 3] = 2,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        full_weights: bool = True,
        autoep: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_installed()
        extra = dict(config or {})
        zero = dict(extra.pop("zero_optimization", {}))
        super().__init__(
            stage=zero_stage,
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            **kwargs,
        )
        self.ep_size, self.autoep = ep_size, dict(autoep or {})
        self.zero_stage: int = zero_stage
        self.offload_parameters = offload_parameters
        self.full_weights, self.extra = full_weights, dict(config or {})
        self._before: torch.Tensor | None = None
        settings = cast(dict[str, Any], self.config)
        # With accumulation of our own, DeepSpeed 0.19 overlaps gradients from stage 2 on only.
        if zero_stage == 1:
            zero["overlap_comm"] = False
        settings["zero_optimization"] |= zero
        self.config = settings | {
            # An update has as many micro-batches as its tokens need; `step` ends it, not a count.
            "managed_gradient_accumulation": False,
            # Read for DeepSpeed's throughput lines alone, where Lightning would look for a sampler.
            "train_micro_batch_size_per_gpu": 1,
            # `model.optimizer` may be any of torch's; DeepSpeed has a list of those it has tried.
            "zero_allow_untested_optimizer": True,
            # Offloading would insist on DeepSpeed's own Adam, which it compiles.
            "zero_force_ds_cpu_optimizer": False,
            **extra,
        }

    @property
    def module(self) -> Trained:
        """The module that trains."""
        return cast(Trained, self.lightning_module)

    @property
    def _fits(self) -> bool:
        return bool(self.module.trainer.state.fn == TrainerFn.FITTING)

    @property
    def sharded(self) -> bool:
        """Whether a forward pass is a collective."""
        return self.world_size > 1 and (self.ep_size > 1 or self.zero_stage == 3)

    # Starting

    @override
    def setup_environment(self) -> None:
        """Refuse what cannot work, then start the process group."""
        check_run(self)
        bfloat16 = self.module.policy.dtype == "bfloat16"
        self.precision_plugin = WeightsAsLoaded("bf16-true" if bfloat16 else "32-true")
        cast(dict[str, Any], self.config)["gradient_clipping"] = self.module.settings.max_grad_norm
        import deepspeed

        # A policy's LogProbs are no tensors to DeepSpeed; it owns no weights that need hooks there.
        deepspeed.utils.logger.addFilter(lambda record: "outputs type" not in record.getMessage())
        if isinstance(self.accelerator, CUDAAccelerator):
            super().setup_environment()
            return
        # DeepSpeed would compile a shared-memory collective for CPUs; gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        super(DeepSpeedStrategy, self).setup_environment()

    @override
    def setup_distributed(self) -> None:
        """Start the process group, on CPU without asking for device indices."""
        if isinstance(self.accelerator, CUDAAccelerator):
            super().setup_distributed()
            return
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @override
    def model_sharded_context(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Build whole models: cold start and reference need them; stage 3 cuts them up later."""
        return nullcontext()

    @override
    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        policy = self.module.policy
        policy.settled_feed()
        if self.ep_size > 1 and not autoep.moe_layers(model):
            self._before = self._probe()
            parts: list[Any] = [policy.causal_lm]
            if (trunk := getattr(self.module.critic, "trunk", None)) is not None:
                parts.append(trunk)
            for part in parts:
                blocks = autoep.shard_experts(part, self.ep_size, self.autoep)
                log.info("sharded experts: %d blocks over %d processes each", blocks, self.ep_size)
        return model

    @override
    def setup(self, trainer: Any) -> None:
        """Shard the experts, start the engine, and make sure that it does what was asked."""
        super().setup(trainer)
        self.module.policy.lockstep = self.sharded
        if trainer.training:
            check_engine(self)
        if self._before is not None:
            # After the engine: what a gate returns has to be what its own hooks made of it.
            watch_sharded(cast(MoEPolicy, self.module.policy))
            self._compare(self._before)
            self._before = None

    def _probe(self) -> torch.Tensor:
        """Return the logits of a few tokens."""
        policy = self.module.policy
        with policy.generating():
            size = policy.causal_lm.config.get_text_config().vocab_size
            # Steps of a prime take the ids from all over the vocabulary.
            ids = torch.arange(8, device=policy.device)[None] * 7919 % size
            return cast(torch.Tensor, policy.causal_lm(input_ids=ids, use_cache=False).logits.cpu())

    def _compare(self, before: torch.Tensor) -> None:
        """Refuse blocks of experts that compute something else than those they replaced."""
        before, after = before.float(), self._probe().float()
        bound = 1e-4 if self.module.policy.dtype == "float32" else 5e-2
        worst = float((after - before).abs().max() / before.abs().max())
        if not worst <= bound:
            kind = self.module.policy.causal_lm.config.model_type
            raise UserError(
                f"trainer.strategy ep_size {self.ep_size}: AutoEP's blocks of experts change the "
                f"logits of '{kind}' by {worst:.1e} of their size; use ep_size 1"
            )

    # The engine

    def whole_size(self, parameter: torch.Tensor) -> int:
        """Return how many numbers a parameter has over all processes."""
        size = int(getattr(parameter, "ds_numel", parameter.numel()))
        return size * (self.ep_size if autoep.is_expert(parameter) else 1)

    def split(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a parameter group as DeepSpeed wants it: experts apart from the rest."""
        expert = [p for p in group["params"] if autoep.is_expert(p)]
        dense = [p for p in group["params"] if not autoep.is_expert(p)]
        groups = [{**group, "params": dense}] if dense else []
        if expert:
            name = f"ep_size_{self.ep_size}"
            groups.append({**group, "params": expert, "moe": True, "name": name})
        return groups

    @override
    def _setup_model_and_optimizer(
        self, model: nn.Module, optimizer: Any, lr_scheduler: Any = None
    ) -> tuple[Any, Any]:
        parameters = [p for p in model.parameters() if p.requires_grad]
        return self._initialize(self.config, model, parameters, optimizer, lr_scheduler)

    @override
    def _initialize_deepspeed_inference(self, model: nn.Module) -> None:
        config = dict(cast(dict[str, Any], self.config))
        if self.zero_stage < 3:
            config.pop("zero_optimization")
            config.pop("bf16", None)  # its optimizer would ask for groups of experts
        self.model, _ = self._initialize(config, model, [], None, None)

    def _initialize(
        self, config: Any, model: nn.Module, parameters: list[Any], optimizer: Any, scheduler: Any
    ) -> tuple[Any, Any]:
        import deepspeed

        index = self.root_device.index
        device = self.local_rank if index is None else index  # a CPU has no index
        engine, optimizer, _, _ = deepspeed.initialize(
            args=argparse.Namespace(device_rank=device),
            config=config,
            model=model,
            model_parameters=parameters,
            optimizer=optimizer,
            lr_scheduler=scheduler,
            dist_init_required=False,
        )
        return engine, optimizer

    # Checkpoints

    @property
    def shard_map(self) -> dict[str, int]:
        """How weights and optimizer states are cut up; a checkpoint fits this and no other."""
        sizes = {"processes": self.world_size, "ep_size": self.ep_size}
        return {**sizes, "zero_stage": self.zero_stage}

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write every process's share into a folder, and the whole policy beside them."""
        folder = Path(self.broadcast(filepath))
        super().save_checkpoint(checkpoint, folder, storage_options)
        if self.full_weights:
            weights = whole_policy(self.module.policy, keep=self.is_global_zero)
        if self.is_global_zero:
            write_shard_map(folder, self.shard_map)
            if self.full_weights:
                shared = {key: checkpoint[key] for key in WHOLE}
                torch.save({**shared, "state_dict": weights}, folder / WEIGHTS)

    @property
    @override
    def restore_checkpoint_after_setup(self) -> bool:
        """Resume into shares; without training, read whole weights before they are cut up."""
        return self._fits

    @override
    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read this process's share, or the whole policy where nothing trains.

        Raises:
            UserError: If the checkpoint is not one, or was cut up in another way.
        """
        if not self._fits:
            return torch.load(checkpoint_file(str(checkpoint_path)), "cpu", weights_only=True)
        check_shard_map(Path(checkpoint_path), self.shard_map)
        return super().load_checkpoint(checkpoint_path, weights_only)

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take whole weights in; a share has been taken in by `load_checkpoint`."""
        if not self._fits:
            # Only the policy is there: no critic, and tied weights once.
            self.module.load_state_dict(checkpoint["state_dict"], strict=False)
