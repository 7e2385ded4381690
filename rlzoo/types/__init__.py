"""The data that flows through one iteration, and the statistics that are kept of it."""

from rlzoo.types.expert_choices import RouterSettings, RouterSizes, Routing, RoutingRecord
from rlzoo.types.flow import (
    Experience,
    LogProbs,
    PolicyBatch,
    Prompt,
    Prompts,
    Rewards,
    Rollouts,
    SamplingParams,
    Sequences,
)
from rlzoo.types.stats import Stats

__all__ = [
    "Experience",
    "LogProbs",
    "PolicyBatch",
    "Prompt",
    "Prompts",
    "Rewards",
    "Rollouts",
    "RouterSettings",
    "RouterSizes",
    "Routing",
    "RoutingRecord",
    "SamplingParams",
    "Sequences",
    "Stats",
]
