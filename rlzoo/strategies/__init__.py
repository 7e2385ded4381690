"""Training strategies, and what the update loop asks of one."""

from rlzoo.strategies.deepspeed.strategy import DeepSpeedExpertParallelStrategy
from rlzoo.strategies.fsdp2 import FSDP2Strategy, shard_model
from rlzoo.strategies.stepping import accumulating, clip_and_step, is_engine, training_pass

__all__ = [
    "DeepSpeedExpertParallelStrategy",
    "FSDP2Strategy",
    "accumulating",
    "clip_and_step",
    "is_engine",
    "shard_model",
    "training_pass",
]
