"""The decoding step of the common dense families, written out for speed.

One matrix product for query, key and value, one for gate and up; the queries of a group of heads
share one pass over its keys; keys and values are written in place. Weights are laid out, and cast
where autocast asks for it, once per call of the sampler, and dropped at its end. A mixture of
experts keeps its own feed-forward modules; only its attention is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlzoo.models.base import Policy
from rlzoo.models.feeding.trunk import compute_dtype
from rlzoo.models.log_probs import logit_transform
from rlzoo.rollout.decoding.decoders import SlotDecoder
from rlzoo.rollout.decoding.kv_cache import Slots

DENSE = ("llama", "mistral", "qwen2", "qwen3")
MOE = ("mixtral", "qwen2_moe", "qwen3_moe")
_ROPE = ("default", "linear", "llama3", "yarn")
_PACKED_ROWS = 32  # rows that a layout is made for; it serves any number
_WORTH_PACKING = 2**16


class Unfusable(Exception):
    """Why a model is run by transformers instead."""


class FusedDecoder(SlotDecoder):
    """Prefills with transformers and decodes with fused weights.

    Args:
        policy: A model of one of the families `DENSE` and `MOE`.
        rows: Most answers at a time.
        room: Most tokens per answer.

    Raises:
        Unfusable: If the model has a part that this decoder does not know.
    """

    def __init__(self, policy: Policy, rows: int, room: int) -> None:
        super().__init__(policy, rows, room)
        model = policy.causal_lm
        config = model.config.get_text_config()
        _check(config)
        trunk, head = model.base_model, model.get_output_embeddings()
        dtype = self.dtype = compute_dtype(policy.device, head.weight.dtype)
        if type(trunk.embed_tokens) is not nn.Embedding:
            raise Unfusable(f"it cannot read the weights of {type(trunk.embed_tokens).__name__}")
        self.embedding = trunk.embed_tokens.weight
        self.layers = [_Layer.of(layer, dtype) for layer in trunk.layers]
        self.norm = _Norm.of(trunk.norm)
        self.head = Product.of(dtype, head)
        self.transform = logit_transform(config)
        self.cos, self.sin = self._rope(trunk, 64)

    def weights(self) -> AbstractContextManager[None]:
        """Return the context in which the model is run: its weights are laid out already."""
        return nullcontext()

    def step(self, tokens: Tensor) -> Tensor:
        """Continue every answer; see `Decoder.step`."""
        slots = self.slots
        slots.grow()
        positions, visible = self._positions(), slots.visible()
        last = slots.end - slots.low
        if last >= len(self.cos):
            self.cos, self.sin = self._rope(self.policy.causal_lm.base_model, 2 * last)
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        bias = None
        if visible is not None:
            bias = cos.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)[:, None, None]
        hidden = F.embedding(tokens, self.embedding)
        for i, layer in enumerate(self.layers):
            hidden = layer(hidden, slots, i, cos, sin, bias, self.dtype)
        slots.advance()
        hidden = self.norm(hidden).to(self.dtype)
        return self.transform(self.head(hidden)).float()

    def _rope(self, trunk: Any, length: int) -> tuple[Tensor, Tensor]:
        """Return (length, D) cosines and sines, the sign of the rotation in the sines."""
        positions = torch.arange(length, device=self.policy.device)[None]
        like = torch.zeros((), device=self.policy.device, dtype=self.dtype)
        cos, sin = (part[0] for part in trunk.rotary_emb(like, positions))
        first = sin.shape[-1] // 2
        return cos, torch.cat([-sin[:, :first], sin[:, first:]], -1)


def _check(config: Any) -> None:
    if config.model_type not in (*DENSE, *MOE):
        raise Unfusable(f"model_type '{config.model_type}' is not one it knows")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _ROPE:
        raise Unfusable(f"rope_type '{rope}' depends on the length of the text")
    kinds = getattr(config, "layer_types", None)
    # Mistral, Mixtral and Qwen3-MoE have one window for all layers, and name no kinds of layers.
    everywhere = not kinds and getattr(config, "use_sliding_window", True)
    if "sliding_attention" in (kinds or []) or (
        everywhere and getattr(config, "sliding_window", None)
    ):
        raise Unfusable("its layers attend to a sliding window")


@dataclass
class _Norm:
    weight: Tensor
    eps: float

    @staticmethod
    def of(module: Any) -> _Norm:
        return _Norm(module.weight, module.variance_epsilon)

    def __call__(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], self.weight, self.eps)


class Product:
    """A matrix product with a constant (out, in) weight.

    On a CPU the weight is laid out for its kernel beforehand: at the few rows of a decoding step,
    laying it out anew takes as long as multiplying.

    Args:
        weight: (out, in).
        bias: (out,) or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.packed = _packs(weight)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS)

    @staticmethod
    def of(dtype: torch.dtype, *modules: Any) -> Product:
        """Join linear modules that read the same input, one below another."""
        parts = [_merged(module) for module in modules]
        weights = [weight.detach().to(dtype) for weight, _ in parts]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        if all(bias is None for _, bias in parts):
            return Product(weight, None)
        biases = [w.new_zeros(len(w)) if b is None else b.detach() for w, b in parts]
        return Product(weight, torch.cat(biases).to(dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply (rows, in) to (rows, out)."""
        if not self.packed:
            return F.linear(x, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return product


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32 and weight.numel() >= _WORTH_PACKING


@dataclass
class _Layer:
    """One layer's weights; `norms` has a line per head of query and key, where they are normed."""

    before: _Norm
    qkv: Product
    norms: _Norm | None
    out: Product
    heads: int
    groups: int
    scale: float
    after: _Norm
    mlp: Callable[[Tensor, torch.dtype], Tensor]

    @staticmethod
    def of(layer: Any, dtype: torch.dtype) -> _Layer:
        attention = layer.self_attn
        size = attention.head_dim
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        heads, groups = q.out_features // size, k.out_features // size
        norms = None
        if hasattr(attention, "q_norm"):
            one, two = attention.q_norm, attention.k_norm
            lines = [one.weight.expand(heads, -1), two.weight.expand(groups, -1)]
            norms = _Norm(torch.cat(lines).to(dtype), one.variance_epsilon)
        return _Layer(
            before=_Norm.of(layer.input_layernorm),
            qkv=Product.of(dtype, q, k, v),
            norms=norms,
            out=Product.of(dtype, attention.o_proj),
            heads=heads,
            groups=groups,
            scale=attention.scaling,
            after=_Norm.of(layer.post_attention_layernorm),
            mlp=_feed_forward(layer.mlp, dtype),
        )

    def __call__(
        self,
        hidden: Tensor,
        slots: Slots,
        index: int,
        cos: Tensor,
        sin: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        rows, both = len(hidden), self.heads + self.groups
        qkv = self.qkv(self.before(hidden).to(dtype)).view(rows, both + self.groups, -1)
        qk, size = qkv[:, :both], qkv.shape[-1]
        if self.norms is not None:
            qk = F.rms_norm(qk, (size,), None, self.norms.eps) * self.norms.weight
        halves = qk.view(rows, both, 2, -1).flip(-2).view(rows, both, size)
        qk = torch.addcmul(qk * cos, halves, sin)
        keys, values = slots.write(index, qk[:, self.heads :, None], qkv[:, both:, None])
        query = qk[:, : self.heads].reshape(rows, self.groups, -1, size)
        seen = F.scaled_dot_product_attention(query, keys, values, bias, scale=self.scale)
        hidden = hidden + self.out(seen.reshape(rows, -1))
        return hidden + self.mlp(self.after(hidden), dtype)


def _feed_forward(mlp: Any, dtype: torch.dtype) -> Callable[[Tensor, torch.dtype], Tensor]:
    """Return a dense block with its weights laid out, or a mixture of experts as it is."""
    if not hasattr(mlp, "gate_proj"):
        return lambda x, dtype: mlp(x[:, None]).squeeze(1)
    gate_up = Product.of(dtype, mlp.gate_proj, mlp.up_proj)
    down = Product.of(dtype, mlp.down_proj)

    def dense(x: Tensor, dtype: torch.dtype) -> Tensor:
        gate, up = gate_up(x.to(dtype)).chunk(2, -1)
        return down(mlp.act_fn(gate) * up)

    return dense


def _merged(module: Any) -> tuple[Tensor, Tensor | None]:
    """Return a linear module's weight and bias, adapters merged in."""
    if type(module) is nn.Linear:
        return module.weight, module.bias
    plain = hasattr(module, "get_delta_weight") and type(module.base_layer) is nn.Linear
    odd = [name for name in ("use_dora", "lora_bias") if any(getattr(module, name, {}).values())]
    if not plain or odd:
        raise Unfusable(f"it cannot read the weights of {type(module).__name__} {odd or ''}")
    weight, bias = module.base_layer.weight, module.base_layer.bias
    if not module.disable_adapters and not module.merged:
        for name in module.active_adapters:
            if name in module.lora_A:
                weight = weight + module.get_delta_weight(name)
    return weight, bias
