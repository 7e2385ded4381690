"""Sharding: which share of weights, gradients and optimizer state a process holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from rlzoo.errors import UserError


@dataclass(frozen=True)
class Sharding:
    """How a model is sharded over processes.

    Attributes:
        kind: ``single``, ``ddp``, ``deepspeed`` or ``fsdp2``.
        world: Processes, one per device.
        nodes: Machines.
        stage: ZeRO stage: what is partitioned from 1 on is optimizer state, from 2 gradients,
            from 3 weights. FSDP2 does what stage 3 does.
        ep_size: Processes over which the experts of a layer are sharded.
        bucket_view: Whether DDP's gradients live in its buckets, in place of a copy there.
        gather_for_rollout: Whether FSDP2 keeps all weights whole while answers are sampled.
        offload_optimizer: Whether optimizer state is in the host's memory.
        offload_weights: Whether weights are.
    """

    kind: str
    world: int
    nodes: int = 1
    stage: int = 0
    ep_size: int = 1
    bucket_view: bool = False
    gather_for_rollout: bool = True
    offload_optimizer: bool = False
    offload_weights: bool = False

    @property
    def words(self) -> str:
        """The strategy as a person would name it."""
        names = {"single": "one process", "ddp": "DDP", "fsdp2": "FSDP2"}
        name = names.get(self.kind) or f"DeepSpeed ZeRO {self.stage}"
        if self.kind == "fsdp2" and not self.gather_for_rollout:
            name += ", rollout by layer"
        if self.ep_size > 1:
            name += f", experts over {self.ep_size}"
        if self.offload_optimizer:
            name += ", weights and optimizer offloaded" if self.offload_weights else ", offloaded"
        return name

    def share(self, dense: float, routed: float, stage: int) -> float:
        """Return how many of the parameters one process holds.

        ``(dense + routed) / world`` where they are partitioned over all processes, else
        ``dense + routed / ep_size``. An expert-parallel group leaves ``world / ep_size`` replicas
        of each expert, over which ZeRO partitions it.

        Args:
            dense: Parameters that every token meets.
            routed: Parameters of routed experts.
            stage: From which ZeRO stage on they are partitioned.

        Returns:
            A count.
        """
        if self.stage >= stage:
            return (dense + routed) / self.world
        return dense + routed / self.ep_size

    def alternatives(self, experts: int) -> list[Sharding]:
        """Return the other ways to shard the same model over the same processes.

        Args:
            experts: Routed experts per layer, 0 for a dense model.
        """
        plain = replace(self, ep_size=1, offload_optimizer=False, offload_weights=False)
        zero = [replace(plain, kind="deepspeed", stage=stage) for stage in (1, 2, 3)]
        if self.world == 1:
            return [replace(plain, kind="single", stage=0), *zero]
        fits = [e for e in (8, 4, 2) if experts and experts % e == 0 and self.world % e == 0]
        size = self.ep_size if self.ep_size > 1 else max(fits, default=1)
        sharded = [replace(way, ep_size=size) for way in zero[1:]] if size > 1 else []
        first = replace(plain, kind="ddp", stage=0)
        whole = replace(plain, kind="fsdp2", stage=3, gather_for_rollout=True)
        return [first, *zero, whole, replace(whole, gather_for_rollout=False), *sharded]


def sharding_of(trainer: dict[str, Any], experts: int) -> Sharding:
    """Read the strategy of a run.

    Args:
        trainer: Settings of the trainer.
        experts: Routed experts per layer, 0 for a dense model.

    Returns:
        How its weights are sharded.

    Raises:
        UserError: If the settings depend on the machine, or the strategy is not known.
    """
    nodes = int(trainer.get("num_nodes") or 1)
    world = _devices(trainer) * nodes
    cls, options = _strategy(trainer.get("strategy", "auto"), world)
    names = {base.__name__ for base in cls.__mro__}
    if "SingleDeviceStrategy" in names:
        return Sharding("single", 1)
    if "ModelParallelStrategy" in names:
        whole = bool(options.get("gather_for_rollout", True))
        return Sharding("fsdp2", world, nodes, stage=3, gather_for_rollout=whole)
    if "DDPStrategy" in names and "DeepSpeedStrategy" not in names:
        view = bool(options.get("gradient_as_bucket_view"))
        return Sharding("ddp", world, nodes, bucket_view=view)
    if "DeepSpeedStrategy" not in names:
        raise UserError(
            f"trainer.strategy {cls.__name__}: a plan knows auto, ddp, fsdp2 and DeepSpeed; choose "
            "one of these"
        )
    ep_size = int(options.get("ep_size") or 1)
    if ep_size > 1 and (not experts or experts % ep_size or world % ep_size):
        raise UserError(
            f"trainer.strategy.ep_size {ep_size} must divide the {experts} experts of a layer and "
            f"the {world} processes"
        )
    stage = options.get("zero_stage", options.get("stage", 2))
    return Sharding(
        "deepspeed",
        world,
        nodes,
        stage=int(stage),
        ep_size=ep_size,
        offload_optimizer=bool(options.get("offload_optimizer")),
        offload_weights=bool(options.get("offload_parameters")),
    )


def _devices(trainer: dict[str, Any]) -> int:
    devices = trainer.get("devices", "auto")
    if isinstance(devices, list):
        return len(devices)
    text = str(devices)
    if text.isdigit() and int(text) > 0:
        return int(text)
    if "," in text:
        return len([part for part in text.split(",") if part])
    raise UserError(
        f"trainer.devices {devices} depends on the machine; give a number, such as "
        "--trainer.devices 8"
    )


def _strategy(strategy: Any, world: int) -> tuple[type, dict[str, Any]]:
    """Return a strategy's class and its settings."""
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry

    if strategy == "auto":
        return (SingleDeviceStrategy if world == 1 else DDPStrategy), {}
    if isinstance(strategy, str) and "." not in strategy:
        if strategy not in StrategyRegistry:
            raise UserError(f"trainer.strategy {strategy} is not one of Lightning's")
        found = StrategyRegistry[strategy]
        return found["strategy"], dict(found["init_params"] or {})
    path = strategy if isinstance(strategy, str) else strategy["class_path"]
    module, _, name = path.rpartition(".")
    options = {} if isinstance(strategy, str) else dict(strategy.get("init_args") or {})
    extra = {} if isinstance(strategy, str) else dict(strategy.get("dict_kwargs") or {})
    return getattr(import_module(module), name), options | extra
