"""Sampling answers."""

from rlzoo.rollout.base import Sampler
from rlzoo.rollout.native import NativeSampler

__all__ = ["NativeSampler", "Sampler"]
