"""DeepSpeed: ZeRO, and experts sharded over processes."""

from rlzoo.strategies.deepspeed.strategy import DeepSpeedExpertParallelStrategy

__all__ = ["DeepSpeedExpertParallelStrategy"]
