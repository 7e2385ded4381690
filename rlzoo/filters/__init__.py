"""Filters: between rewards and advantages, they decide which answers train."""

from rlzoo.filters.base import Filter, Iteration
from rlzoo.filters.dynamic_sampling import DynamicSampling
from rlzoo.filters.silent_groups import SkipSilentGroups
from rlzoo.filters.truncated import MaskTruncated

__all__ = ["DynamicSampling", "Filter", "Iteration", "MaskTruncated", "SkipSilentGroups"]
