"""Sampling answers."""

from rlzoo.rollout.base import Sampler
from rlzoo.rollout.engines import ColocatedVLLM, Engine
from rlzoo.rollout.native import NativeSampler
from rlzoo.rollout.server import VLLMServer
from rlzoo.rollout.vllm import VLLMSampler

__all__ = ["ColocatedVLLM", "Engine", "NativeSampler", "Sampler", "VLLMSampler", "VLLMServer"]
