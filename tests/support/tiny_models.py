"""Tiny models of many families, and a model whose next token is known."""

from types import SimpleNamespace

import torch
from torch import nn

from rlzoo.models import DensePolicy, MoEPolicy

CHARACTERS = "0123456789abcdef+= "
COMMON = {"num_hidden_layers": 2, "hidden_size": 32, "initializer_range": 0.2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48}
DENSE = {
    "qwen3": dict(model_type="qwen3", **COMMON, **HEADS),
    "llama": dict(model_type="llama", **COMMON, **HEADS),
    "gpt2": dict(model_type="gpt2", **COMMON, num_attention_heads=4, max_position_embeddings=64),
    "gemma2": dict(
        model_type="gemma2", **COMMON, **HEADS, final_logit_softcapping=1.5, sliding_window=6
    ),
    "cohere": dict(
        model_type="cohere",
        **COMMON,
        logit_scale=0.25,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    ),
    "granite": dict(
        model_type="granite",
        **COMMON,
        logits_scaling=3.0,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    ),
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
MOE = {
    "qwen3_moe": dict(
        model_type="qwen3_moe", **COMMON, **HEADS, **EXPERTS, num_experts=4, decoder_sparse_step=1
    ),
    "mixtral": dict(
        model_type="mixtral", **COMMON, **HEADS, num_experts_per_tok=2, num_local_experts=4
    ),
    "olmoe": dict(
        model_type="olmoe",
        **COMMON,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen2_moe": dict(
        model_type="qwen2_moe",
        **COMMON,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        shared_expert_intermediate_size=24,
        num_experts=4,
        decoder_sparse_step=1,
        **EXPERTS,
    ),
    "deepseek_v2": dict(
        model_type="deepseek_v2",
        **COMMON,
        **LATENT,
        **EXPERTS,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.5,
    ),
    "deepseek_v3": dict(
        model_type="deepseek_v3",
        **COMMON,
        **LATENT,
        **EXPERTS,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        norm_topk_prob=True,
    ),
    "qwen3_5_moe": dict(
        model_type="qwen3_5_moe_text",
        **COMMON,
        **EXPERTS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        shared_expert_intermediate_size=24,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}


def build(family, **kwargs):
    """Build and load a tiny policy; keyword `config` is merged into the family's."""
    kind, table = (MoEPolicy, MOE) if family in MOE else (DensePolicy, DENSE)
    config = {**table[family], **kwargs.pop("config", {})}
    policy = kind(config=config, characters=CHARACTERS, **kwargs)
    policy.load()
    return policy


class Identity(nn.Module):
    """A trunk whose hidden state is the token's id."""

    def forward(self, input_ids, use_cache):
        return SimpleNamespace(last_hidden_state=input_ids[..., None].float())


class Counter(nn.Module):
    """A causal LM that gives token + 1 a logit of 100, in any vocabulary and dtype."""

    def __init__(self, vocabulary, logit=100.0, dtype=torch.float32):
        super().__init__()
        text = SimpleNamespace(vocab_size=vocabulary, model_type="counter")
        self.config = SimpleNamespace(get_text_config=lambda: text)
        self.weight = nn.Parameter(torch.tensor(logit, dtype=dtype))

    @property
    def base_model(self):
        return Identity()

    def get_output_embeddings(self):
        def head(hidden):
            size = self.config.get_text_config().vocab_size
            logits = hidden.new_zeros(len(hidden), size, dtype=self.weight.dtype)
            return logits.scatter(-1, hidden.long() + 1, float(self.weight.detach()))

        return head
