"""Low-rank adapters, through peft."""

from __future__ import annotations

from typing import Any

from rlzoo.errors import UserError, first_line
from rlzoo.models.loading.configs import seeded


def check_lora(lora: dict[str, Any]) -> None:
    """Refuse adapter settings that would make log-probs random.

    Args:
        lora: Keys of peft's LoraConfig.

    Raises:
        UserError: Naming the key.
    """
    if lora.get("lora_dropout"):
        raise UserError(
            f"lora: lora_dropout {lora['lora_dropout']} would make every ratio noisy; remove it"
        )


def add_adapters(model: Any, lora: dict[str, Any], seed: int) -> Any:
    """Freeze a model and put trainable adapters on its layers.

    Args:
        model: A transformers causal language model, changed in place.
        lora: Keys of peft's LoraConfig; ``target_modules`` is ``all-linear`` unless it says
            otherwise. What that means in a mixture of experts, whose experts and routers are often
            no linear modules, differs by family: name the modules there.
        seed: Seed of the adapters' weights.

    Returns:
        The peft model around it.

    Raises:
        UserError: If peft is missing or refuses a setting.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UserError("`lora` needs: pip install 'rlzoo-lightning[lora]'") from error
    try:
        settings = LoraConfig(**{"target_modules": "all-linear", "task_type": "CAUSAL_LM", **lora})
        with seeded(seed):
            return get_peft_model(model, settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"lora: {first_line(error)}; see the keys of peft's LoraConfig") from error
