"""What is not essential to training: checkpoints, the report, and its picture."""

from rlzoo.callbacks.checkpoint import IterationCheckpoint
from rlzoo.callbacks.report import Report

__all__ = ["IterationCheckpoint", "Report"]
