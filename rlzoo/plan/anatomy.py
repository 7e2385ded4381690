"""The anatomy of a model, counted on the meta device: shapes and no weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.models.loading.configs import silence_noise
from rlzoo.models.loading.lora import add_adapters
from rlzoo.models.moe.policy import num_experts
from rlzoo.plan.known import KNOWN

ROUTED = ".experts."
"""Part of the names of routed experts' weights; a shared expert's has none of it."""


@dataclass(frozen=True)
class Anatomy:
    """Sizes of a model; parameters are counts, not bytes.

    Attributes:
        family: transformers' model_type.
        source: Where the config came from.
        total: All parameters, tied ones once, adapters included.
        trainable: Those that train: all, or the adapters alone.
        routed: Weights of the routed experts.
        trainable_routed: Those of them that train.
        embedding: The input embedding, which multiplies nothing unless it is the output too.
        trunk: Parameters without the output head, which a separate critic copies.
        largest_block: Parameters of the largest decoder layer.
        layers: Decoder layers.
        moe_layers: Those of them with routed experts.
        experts: Routed experts per layer, 0 for a dense model.
        chosen: Experts per token.
        hidden: Width of the residual stream.
        heads: Attention heads.
        key_width: Elements of one layer's keys and values per token, both together.
        query_width: Heads times the width of one.
        mlp: Width of a dense layer's MLP.
        expert_mlp: Width of an expert.
        vocabulary: V.
        normed_heads: Whether queries and keys are normalized.
        tied: Whether the output head is the input embedding.
    """

    family: str
    source: str
    total: int
    trainable: int
    routed: int
    trainable_routed: int
    embedding: int
    trunk: int
    largest_block: int
    layers: int
    moe_layers: int
    experts: int
    chosen: int
    hidden: int
    heads: int
    key_width: int
    query_width: int
    mlp: int
    expert_mlp: int
    vocabulary: int
    normed_heads: bool
    tied: bool

    @property
    def active(self) -> int:
        """Parameters that one token meets."""
        idle = 1 - self.chosen / self.experts if self.experts else 0.0
        return round(self.total - self.routed * idle)

    @property
    def multiplied(self) -> int:
        """Parameters that one token is multiplied by: the active ones but for the look-up."""
        return self.active - (0 if self.tied else self.embedding)


def config_of(policy: Policy) -> tuple[Any, str]:
    """Return a policy's transformers config, and where it came from.

    Args:
        policy: Built, not loaded.

    Returns:
        Config and source, in words.

    Raises:
        UserError: If it cannot be had without loading weights.
    """
    source = policy.source
    if source.path in KNOWN:
        from transformers import AutoConfig

        config = AutoConfig.for_model(**copy.deepcopy(KNOWN[source.path]))
        silence_noise(config)
        return config, f"{source.path}, its published shapes"
    if source.pending_gguf():
        raise UserError(
            f"model.policy.path '{source.path}' is a GGUF file that has not been converted yet, "
            "and a plan loads no weights; plan with the model's Hugging Face folder or hub id"
        )
    return source.hf_config, source.path or "model.policy.config"


def measure(policy: Policy) -> Anatomy:
    """Count a policy's parts without weights.

    Args:
        policy: Built, not loaded.

    Returns:
        Its anatomy.

    Raises:
        UserError: If the family has no such parts as are counted here.
    """
    from transformers import AutoModelForCausalLM

    config, source = config_of(policy)
    text = config.get_text_config()
    policy.check_family(text)
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention", "chunked_attention"}:
        raise UserError(
            f"model_type '{config.model_type}' has layers {', '.join(sorted(kinds))}; a plan knows "
            "attention alone"
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
        blocks = decoder_layers(model)
        largest = max(sum(p.numel() for p in block.parameters()) for block in blocks)
        if policy.lora is not None:
            model = add_adapters(model, policy.lora, policy.init_seed)
    bare = model.get_base_model() if policy.lora is not None else model
    named = list(model.named_parameters())
    routed = [(name, p) for name, p in named if ROUTED in name]
    embedding, head = bare.get_input_embeddings().weight, bare.get_output_embeddings().weight
    total = sum(p.numel() for _, p in named)
    tied = head is embedding
    count = num_experts(text)
    return Anatomy(
        family=config.model_type,
        source=source,
        total=total,
        trainable=sum(p.numel() for _, p in named if p.requires_grad),
        routed=sum(p.numel() for _, p in routed),
        trainable_routed=sum(p.numel() for _, p in routed if p.requires_grad),
        embedding=embedding.numel(),
        trunk=total - (0 if tied else head.numel()),
        largest_block=largest,
        layers=len(blocks),
        moe_layers=sum(any(ROUTED in n for n, _ in b.named_parameters()) for b in blocks),
        experts=count,
        chosen=int(text.num_experts_per_tok) if count else 0,
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        **_attention(text),
        mlp=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        expert_mlp=_expert_width(text) if count else 0,
        vocabulary=text.vocab_size,
        normed_heads=any("q_norm" in name for name, _ in named),
        tied=tied,
    )


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """Return the decoder layers of a transformers model, first to last.

    Args:
        model: A causal language model without adapters.

    Returns:
        Its layers.

    Raises:
        UserError: If it has none by a name that is known.
    """
    for name in ("layers", "h", "blocks"):
        found = getattr(model.base_model, name, None)
        if isinstance(found, torch.nn.ModuleList):
            return list(found)
    raise UserError(
        f"model_type '{model.config.model_type}' keeps its layers where rlzoo does not look; use "
        "another family"
    )


def _attention(text: Any) -> dict[str, int]:
    heads = text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):  # transformers caches what the heads see, expanded
        width = text.qk_nope_head_dim + text.qk_rope_head_dim
        return {"key_width": heads * (width + text.v_head_dim), "query_width": heads * width}
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    keys = getattr(text, "num_key_value_heads", None) or heads
    return {"key_width": 2 * keys * width, "query_width": heads * width}


def _expert_width(text: Any) -> int:
    return int(getattr(text, "moe_intermediate_size", None) or text.intermediate_size)
