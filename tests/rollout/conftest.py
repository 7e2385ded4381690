"""Tiny policies to sample from, and one whose every next token is known."""

from contextlib import nullcontext

import pytest
import torch

from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.types import Prompt, Prompts

COMMON = {"num_hidden_layers": 2, "hidden_size": 32, "initializer_range": 0.2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = {
    "qwen3": {**COMMON, **HEADS, "head_dim": 8},
    "qwen2": {**COMMON, **HEADS},
    "llama": {**COMMON, **HEADS, "attention_bias": True, "rope_parameters": LLAMA3},
    "mistral": {**COMMON, **HEADS, "sliding_window": None},
    "gpt2": {**COMMON, "num_attention_heads": 4, "max_position_embeddings": 64},
    "gemma2": {**COMMON, **HEADS, "head_dim": 8, "sliding_window": 6},
    "mixtral": {**COMMON, **HEADS, "num_experts_per_tok": 2, "num_local_experts": 4},
    "qwen2_moe": {
        **COMMON,
        **HEADS,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {
        **COMMON,
        **HEADS,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
}


@pytest.fixture
def tiny():
    def make(family="qwen3", **kwargs):
        kind = MoEPolicy if family in ("mixtral", "qwen2_moe", "qwen3_moe") else DensePolicy
        config = {"model_type": family, **FAMILIES[family], **kwargs.pop("config", {})}
        policy = kind(config=config, characters="0123456789abcdef+= ", **kwargs)
        policy.load()
        return policy

    return make


def prompts_of(policy, texts, positions=None):
    rows = tuple(Prompt(tuple(policy.encode(text)), text) for text in texts)
    return Prompts(rows, tuple(positions or range(len(rows))))


@pytest.fixture
def ask():
    return prompts_of


class _NoCache:
    def reorder_cache(self, beam_idx):
        pass


class Scripted:
    """A policy that follows every token with a fixed next one, with probability 1."""

    device, max_length, lockstep = torch.device("cpu"), None, True

    def __init__(self, following, eos_ids, pad_id, size=120):
        self.following, self.eos_ids, self.pad_id = following, frozenset(eos_ids), pad_id
        self.size = size

    def generating(self):
        return nullcontext()

    def noting_experts(self):
        return nullcontext(lambda: None)

    def new_cache(self):
        return _NoCache()

    def step(self, input_ids, attention_mask, position_ids, cache):
        logits = torch.full((len(input_ids), self.size), -1e4)
        for row, token in enumerate(input_ids[:, -1].tolist()):
            logits[row, self.following[token]] = 0
        return logits

    def decode(self, ids):
        return " ".join(str(i) for i in ids if i not in self.eos_ids)


@pytest.fixture
def scripted():
    return Scripted
