"""Training strategies, and what the update loop asks of one."""

from rlzoo.strategies.deepspeed.strategy import DeepSpeedExpertParallelStrategy
from rlzoo.strategies.fsdp2 import FSDP2Strategy, shard_model
from rlzoo.strategies.stepping import is_engine, take_update, training_pass

__all__ = [
    "DeepSpeedExpertParallelStrategy",
    "FSDP2Strategy",
    "is_engine",
    "shard_model",
    "take_update",
    "training_pass",
]
