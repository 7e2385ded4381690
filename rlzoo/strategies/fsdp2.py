"""Torch's fully sharded data parallelism (FSDP2), through Lightning's ModelParallelStrategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from typing_extensions import override

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic
from rlzoo.types import Sequences


class FSDP2Strategy(ModelParallelStrategy):
    """Weights, gradients and optimizer state cut up over all processes, layer by layer.

    A layer's weights are gathered for its forward pass and again for its backward pass; gradients
    are reduced to their owners in every micro-batch, so that none is ever whole. Any policy, any
    critic, dense or mixture of experts; the results are those of one process. A checkpoint is one
    file with whole weights, which any number of processes can read. Every process loads the whole
    model into the host's memory before it is cut up.

    Args:
        gather_for_rollout: Keep all weights whole while answers are sampled: fast, and needs room
            for them. Otherwise each layer is gathered for each token.
        **kwargs: ``process_group_backend`` and ``timeout`` of Lightning's ModelParallelStrategy.
    """

    sharded = True

    def __init__(self, gather_for_rollout: bool = True, **kwargs: Any) -> None:
        super().__init__(save_distributed_checkpoint=False, **kwargs)
        self.gather_for_rollout = gather_for_rollout

    @override
    def setup_environment(self) -> None:
        """Start the processes, all of which share one model."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        self._tensor_parallel_size = 1
        super().setup_environment()

    @override
    def setup(self, trainer: Any) -> None:
        """Make sure that the policy itself is what its layers take for the root."""
        super().setup(trainer)
        policy = cast(Policy, cast(Any, self.lightning_module).policy)
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.root_device)
        mask = torch.ones(1, 1, dtype=torch.bool, device=self.root_device)
        with torch.no_grad():
            policy.log_probs(Sequences(ids, torch.ones_like(ids[:, 0]), mask))
        reshard(policy)


StrategyRegistry.register("fsdp2", FSDP2Strategy, description="rlzoo's FSDP2")
OTHERS = (".FSDPStrategy", ".ModelParallelStrategy")
"""Lightning's own ways to shard, which know nothing of rollouts and whole checkpoints."""


def check_sharding(strategy: Any) -> None:
    """Refuse other ways to shard, and a class where Lightning wants a name.

    Args:
        strategy: ``trainer.strategy``.

    Raises:
        UserError: Naming ours.
    """
    name = strategy if isinstance(strategy, str) else str(strategy.get("class_path", ""))
    if name.startswith("fsdp_") or name == "fsdp" or name.endswith(OTHERS):
        raise UserError(
            f"trainer.strategy {name} is not driven by rlzoo; use trainer.strategy fsdp2"
        )
    if "." in name and isinstance(strategy, str):
        raise UserError(f"trainer.strategy {name} is a class; give trainer.strategy.class_path")


def shard_model(
    strategy: Any, policy: Policy, critic: Critic | None, reference: Policy | None
) -> None:
    """Cut up policy, critic and reference where the strategy asks for it.

    Args:
        strategy: The trainer's.
        policy: Its weights are loaded, and no optimizer knows them yet.
        critic: Likewise, or None.
        reference: The frozen copy that a reference keeps, or None.
    """
    if not isinstance(strategy, FSDP2Strategy):
        return
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = strategy.device_mesh["data_parallel"]
    for copy in (policy, reference):
        if copy is not None:
            copy.settled_feed()
            _shard_layers(copy.causal_lm.base_model, mesh)
            # Its backward pass recomputes the head, which must still be whole then.
            fully_shard(copy, mesh=mesh, reshard_after_forward=False)
    if critic is not None:
        trunk = getattr(critic, "trunk", None)
        if trunk is not None:
            _shard_layers(trunk, mesh)
        fully_shard(critic.head, mesh=mesh)  # type: ignore[arg-type]
        fully_shard(critic, mesh=mesh)
        register_fsdp_forward_method(critic, "values")
    policy.while_generating = lambda: gathered(policy, whole=strategy.gather_for_rollout)
    policy.lockstep = not strategy.gather_for_rollout and strategy.world_size > 1


def _shard_layers(trunk: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for part in list(trunk.modules()):
        if isinstance(part, nn.ModuleList):
            for layer in part:
                fully_shard(layer, mesh=mesh)
            return


def units(policy: nn.Module) -> list[Any]:
    """Return the modules whose weights are gathered together."""
    from torch.distributed.fsdp import FSDPModule

    return [part for part in policy.modules() if isinstance(part, FSDPModule)]


@contextmanager
def gathered(policy: nn.Module, *, whole: bool) -> Iterator[None]:
    """Hold weights whole for many forward passes without gradients.

    Args:
        policy: Sharded; every rank must enter.
        whole: All of them; else those outside of the layers, which stay cut up.

    Yields:
        Nothing.
    """
    parts = units(policy)
    held: list[Any] = parts if whole else [part for part in parts if part is policy]
    for part in held:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        reshard(policy)


def reshard(policy: nn.Module) -> None:
    """Let go of all weights that are not this rank's."""
    for part in units(policy):
        part.reshard()
        part.set_reshard_after_forward(part is not policy, recurse=False)


def whole(value: Tensor) -> Tensor:
    """Return a number that may be sharded over ranks, as one that is not."""
    return value.full_tensor() if isinstance(value, DTensor) else value
