"""Experts sharded over processes: DeepSpeed's AutoEP, applied to a Hugging Face model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.errors import UserError, one_line
from rlzoo.models.moe.policy import COUNTS

PATTERN = r"(?:model\.)?layers\.\d+\.(?:mlp|block_sparse_moe|feed_forward)"
"""Names of expert blocks, in a causal language model and in a bare trunk."""


def repair_recorders() -> None:
    """Let transformers' registry of recorded outputs be asked by name, as AutoEP does.

    Since transformers 5.24 it takes models only, and AutoEP's own lookups would fail.
    """
    from transformers.utils import output_capturing

    registry: Any = output_capturing._CAN_RECORD_REGISTRY
    base = type(registry)
    if base is dict or base.__name__ == "Repaired":
        return

    def name(key: Any) -> str:
        return key if isinstance(key, str) else str(key.__class__)

    class Repaired(base):  # type: ignore[misc, valid-type]
        def __setitem__(self, key: Any, value: Any) -> None:
            dict.__setitem__(self, name(key), value)

        def get(self, key: Any, default: Any = None) -> Any:
            return dict.get(self, name(key)) or ({} if default is None else default)

    registry.__class__ = Repaired


def moe_layers(module: nn.Module) -> dict[str, Any]:
    """Return the blocks whose experts are sharded over ranks, by name."""
    found = {}
    for name, part in module.named_modules():
        if hasattr(part, "rlzoo_spec"):
            found[name] = part
    return found


def is_expert(parameter: Tensor) -> bool:
    """Say whether each rank holds another part of a parameter."""
    return getattr(parameter, "allreduce", True) is False


def shard_experts(model: Any, ep_size: int, settings: dict[str, Any]) -> int:
    """Keep 1 / ep_size of the experts of every block, and send tokens to where theirs are.

    Args:
        model: A transformers model, changed in place; every rank must call this.
        ep_size: Processes that share one set of experts.
        settings: Further keys of DeepSpeed's ``expert_parallel``.

    Returns:
        How many blocks were replaced.

    Raises:
        UserError: If AutoEP does not know the model, or cannot divide its experts.
    """
    from deepspeed import comm
    from deepspeed.module_inject.auto_ep import AutoEP
    from deepspeed.module_inject.auto_ep_config import (
        parse_autoep_config,
        validate_autoep_config,
        validate_autoep_post_detection,
    )
    from deepspeed.utils import groups

    repair_recorders()
    config = parse_autoep_config(
        {"enabled": True, "autoep_size": ep_size, **_detection(model.config), **settings}
    )
    groups._create_expert_and_data_parallel(expert_parallel_size_=ep_size)
    rank = comm.get_rank(group=groups._get_expert_parallel_group(f"ep_size_{ep_size}"))
    try:
        validate_autoep_config(config, comm.get_world_size(), 1, 1, 1)
        found = AutoEP(model, config)
        specs = found.ep_parser()
        validate_autoep_post_detection(config, specs)
        for spec in specs:
            _check_layout(model.get_submodule(spec.moe_module_name), spec)
        found.replace_moe_layers(specs, ep_size=ep_size, ep_rank=rank)
    except (ValueError, AttributeError) as error:
        reason = one_line(error)
        raise UserError(f"ep_size {ep_size}: {model.config.model_type}: {reason}") from error
    for spec in specs:
        layer = model.get_submodule(spec.moe_module_name)
        layer.rlzoo_spec = spec
        layer.set_deepspeed_parallelism()
    return len(specs)


def _detection(config: Any) -> dict[str, Any]:
    """Return how AutoEP finds the blocks of a family; it has presets for some of them."""
    from deepspeed.module_inject.auto_ep_presets.registry import preset_name_for_hf_model_type

    if preset_name_for_hf_model_type(config.model_type) is not None:
        return {"moe_layer_pattern": PATTERN}
    return {
        "moe_layer_pattern": PATTERN,
        "num_experts_attr": next((name for name in COUNTS if hasattr(config, name)), COUNTS[0]),
        "route_norm": bool(getattr(config, "norm_topk_prob", False)),
    }


def _check_layout(block: nn.Module, spec: Any) -> None:
    """Refuse experts that could not be put together again as they were."""
    experts: Any = getattr(block, spec.experts_name)
    if spec.expert_storage != "fused_3d" or spec.expert_w3_name is not None:
        raise ValueError("its experts are not stored as gate_up_proj and down_proj")
    gate_up, down = getattr(experts, spec.expert_w1_name), getattr(experts, spec.expert_w2_name)
    if tuple(gate_up.shape[1:]) != (2 * down.shape[2], down.shape[1]):
        raise ValueError("its experts are stored transposed")
    others = {name for name, _ in experts.named_parameters()}
    others -= {spec.expert_w1_name, spec.expert_w2_name}
    if others:
        raise ValueError(f"its experts have {sorted(others)}, which AutoEP would drop")


def whole_weights(module: nn.Module, gathered: Callable[[list[Any]], Any]) -> Iterator[Any]:
    """Yield every parameter that trains, whole and under its Hugging Face name.

    Every rank must exhaust the iterator, in step with the others.

    Args:
        module: What holds the parameters.
        gathered: Context manager in which parameters cut up by ZeRO stage 3 are whole.

    Yields:
        Name and value; the value is only valid until the next one.
    """
    layers = moe_layers(module)
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        owner = next((key for key in layers if name.startswith(key + ".")), None)
        if owner is None:
            with gathered([parameter]):
                yield name, parameter.detach()
            continue
        layer, rest = layers[owner], name.removeprefix(owner + ".")
        for own, tensors in _original(layer, rest):
            with gathered(tensors):
                yield f"{owner}.{own}", _joined(layer, tensors)


def _original(layer: Any, name: str) -> list[tuple[str, list[Tensor]]]:
    """Return the name that a parameter of an AutoEP block came from, and all that makes it up."""
    spec, experts = layer.rlzoo_spec, layer.experts
    if name == "experts.w1":
        return [(f"{spec.experts_name}.{spec.expert_w1_name}", [experts.w1, experts.w3])]
    if name == "experts.w2":
        return [(f"{spec.experts_name}.{spec.expert_w2_name}", [experts.w2])]
    if name == "experts.w3":
        return []
    renamed = re.sub(r"^router\.(?:gate\.)?", f"{spec.router_name}.", name)
    renamed = re.sub(r"^shared_experts_gate\.", f"{spec.shared_experts_gate_name}.", renamed)
    renamed = re.sub(r"^shared_experts\.", f"{spec.shared_experts_name}.", renamed)
    return [(renamed, [layer.get_parameter(name)])]


def _joined(layer: Any, tensors: list[Tensor]) -> Tensor:
    """Return parameters of one block as one: experts of all ranks, gate before up."""
    parts = [tensor.detach() for tensor in tensors]
    if is_expert(tensors[0]):
        parts = [_over_ranks(part.contiguous(), layer.ep_group, layer.ep_size) for part in parts]
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _over_ranks(part: Tensor, group: Any, size: int) -> Tensor:
    pieces = [torch.empty_like(part) for _ in range(size)]
    torch.distributed.all_gather(pieces, part, group=group)
    return torch.cat(pieces)
