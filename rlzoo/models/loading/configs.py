"""Configs of models, read or built, with every source of randomness turned off."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlzoo.errors import UserError, first_line, nearest

_RENAMED_KEYS = {"rope_theta", "rope_scaling", "partial_rotary_factor", "dtype", "torch_dtype"}
_NOISE = ("dropout", "pdrop", "layerdrop", "jitter")
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def load_config(source: str) -> Any:
    """Load the config of a folder or hub id.

    Args:
        source: Folder or hub id.

    Returns:
        A transformers config.

    Raises:
        UserError: If nothing loadable is there.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, local_files_only=os.path.isdir(source))
    except Exception as error:
        raise UserError(
            f"path '{source}' is neither a Hugging Face folder nor a hub id that can be read from "
            f"here ({first_line(error)}); check the spelling, or download it and give its folder"
        ) from error


def build_config(settings: dict[str, Any], tokenizer: Any) -> Any:
    """Make a transformers config, vocabulary and special ids taken from the tokenizer.

    Args:
        settings: ``model_type`` and the keys of that family's config class.
        tokenizer: The tokenizer the model will be used with.

    Returns:
        A transformers config.

    Raises:
        UserError: If the family or a key is unknown, or the vocabulary is too small.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    settings = dict(settings)
    family = settings.pop("model_type", None)
    if family not in CONFIG_MAPPING_NAMES:
        hint = nearest(family, list(CONFIG_MAPPING_NAMES)) if family else "for example qwen3"
        raise UserError(f"config: model_type {family!r} is not a transformers family; {hint}"[:300])
    default = AutoConfig.for_model(family)
    for key in settings:
        if not (hasattr(default, key) or key in _RENAMED_KEYS or _model_reads(family, key)):
            known = [name for name in vars(default) if not name.startswith("_")]
            raise UserError(f"config: {family} has no key '{key}'; {nearest(key, known)}")
    size = settings.setdefault("vocab_size", len(tokenizer))
    if size < len(tokenizer):
        raise UserError(f"config: vocab_size {size} is below the tokenizer's {len(tokenizer)}")
    for name in _SPECIAL_IDS:
        settings.setdefault(name, getattr(tokenizer, name))
    try:
        return AutoConfig.for_model(family, **settings)
    except Exception as error:
        raise UserError(f"config: {family} refuses it: {first_line(error)}") from error


def _model_reads(family: str, key: str) -> bool:
    """Say whether the model's code names a key that its config class does not declare."""
    spec = importlib.util.find_spec(f"transformers.models.{family}")
    code = Path((spec.submodule_search_locations or [""])[0] if spec else "")
    return any(
        re.search(rf"\b{re.escape(key)}\b", file.read_text(encoding="utf-8"))
        for file in code.glob("modeling_*.py")
    )


def silence_noise(config: Any) -> None:
    """Set every dropout, layer-drop and router-jitter probability of a config to 0.

    Args:
        config: A transformers config, changed in place.
    """
    for name, value in vars(config).items():
        if any(word in name for word in _NOISE) and isinstance(value, float):
            setattr(config, name, 0.0)


def noise(model: nn.Module) -> dict[str, float]:
    """List the modules that would still draw random numbers in training mode.

    Args:
        model: Any module.

    Returns:
        Qualified names and their probabilities; empty when the model is deterministic.
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found[name] = module.p
        for key, value in vars(module).items():
            if any(word in key for word in _NOISE) and isinstance(value, float):
                found[f"{name}.{key}"] = value
    return {name: value for name, value in found.items() if value}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a generator of one's own and leave the global ones as they were.

    Args:
        seed: Seed inside the block.

    Yields:
        Nothing.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
