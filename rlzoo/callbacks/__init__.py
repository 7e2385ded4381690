"""Callbacks: checkpoints, the report and its picture, the collapse monitor."""

from rlzoo.callbacks.checkpoint import IterationCheckpoint
from rlzoo.callbacks.collapse import CollapseMonitor
from rlzoo.callbacks.collapse_rules import (
    CollapseRule,
    EntropyRange,
    GradNormSpike,
    KLAbove,
    NonFinite,
    RewardDrop,
)
from rlzoo.callbacks.report import Report

__all__ = [
    "CollapseMonitor",
    "CollapseRule",
    "EntropyRange",
    "GradNormSpike",
    "IterationCheckpoint",
    "KLAbove",
    "NonFinite",
    "Report",
    "RewardDrop",
]
