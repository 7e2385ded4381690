"""What a training strategy asks of the update loop, and strategies of our own."""

from rlzoo.strategies.accumulation import accumulating
from rlzoo.strategies.fsdp2 import FSDP2Strategy

__all__ = ["FSDP2Strategy", "accumulating"]
