"""vLLM as a sampler: on a server, or in the training process."""

from rlzoo.rollout.vllm.engine import ColocatedVLLM, Engine
from rlzoo.rollout.vllm.sampler import VLLMSampler
from rlzoo.rollout.vllm.server import VLLMServer

__all__ = ["ColocatedVLLM", "Engine", "VLLMSampler", "VLLMServer"]
