"""Samplers: they draw answers from a policy."""

from rlzoo.rollout.base import Sampler
from rlzoo.rollout.native import NativeSampler
from rlzoo.rollout.vllm.engine import ColocatedVLLM, Engine
from rlzoo.rollout.vllm.sampler import VLLMSampler
from rlzoo.rollout.vllm.server import VLLMServer

__all__ = ["ColocatedVLLM", "Engine", "NativeSampler", "Sampler", "VLLMSampler", "VLLMServer"]
