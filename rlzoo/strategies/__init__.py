"""What a training strategy asks of the update loop."""

from rlzoo.strategies.accumulation import accumulating

__all__ = ["accumulating"]
