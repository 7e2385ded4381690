"""The data that flows through one iteration, and the statistics that are kept of it."""

from rlzoo.types.expert_choices import RouterSettings, RouterSizes, Routing, RoutingRecord
from rlzoo.types.flow import (
    Experience,
    PolicyBatch,
    Prompt,
    Prompts,
    Rollouts,
    SamplingParams,
    Scores,
    Sequences,
)
from rlzoo.types.stats import Stats

__all__ = [
    "Experience",
    "PolicyBatch",
    "Prompt",
    "Prompts",
    "Rollouts",
    "RouterSettings",
    "RouterSizes",
    "Routing",
    "RoutingRecord",
    "SamplingParams",
    "Scores",
    "Sequences",
    "Stats",
]
