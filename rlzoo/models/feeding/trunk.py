"""A pass of a decoder without its LM head."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.models.feeding import dense_attention, flash_attention, flex_attention
from rlzoo.models.feeding.layout import Layout


def accepts(module: nn.Module, name: str) -> bool:
    """Say whether a module's forward has a parameter of this name.

    Args:
        module: Any module.
        name: Parameter name.

    Returns:
        True if it does.
    """
    return name in _parameters(type(module).forward)


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def compute_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return what products are computed in: autocast's type where it is on, else the weights'.

    Args:
        device: Where the weights are.
        dtype: Of the weights.

    Returns:
        A type.
    """
    autocast = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if autocast else dtype


def hidden_states(trunk: Any, layout: Layout) -> Tensor:
    """Run a decoder without its LM head and keep the states that predict response tokens.

    Args:
        trunk: A transformers decoder.
        layout: What it is fed.

    Returns:
        (M, H) final hidden states in row-major order of the mask.
    """
    kwargs: dict[str, Any] = {"use_cache": False}
    if accepts(trunk, "position_ids"):
        kwargs["position_ids"] = layout.position_ids
    if layout.segments is not None and trunk.config._attn_implementation == flex_attention.NAME:
        kwargs["attention_mask"] = flex_attention.block_mask(layout)
    elif layout.segments is not None:
        if trunk.config._attn_implementation not in (dense_attention.NAME, flash_attention.NAME):
            raise RuntimeError("the decoder was not prepared for sequences in one line")
        kwargs["segments"] = layout.segments
        # Four dimensions are taken as they are: nothing l x l is built.
        kwargs["attention_mask"] = layout.input_ids.new_zeros((1, 1, 1, 1), dtype=torch.bool)
    hidden: Tensor = trunk(input_ids=layout.input_ids, **kwargs).last_hidden_state
    return hidden.flatten(0, 1)[layout.kept]
