"""Mixtures of experts: models whose router picks a few experts for every token."""

from __future__ import annotations

from typing import Any

from rlzoo.errors import UserError
from rlzoo.models.base import Policy

FAMILIES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "deepseek_v2", "deepseek_v3")


def num_experts(config: Any) -> int:
    """Count the experts of one layer.

    Args:
        config: A transformers text config.

    Returns:
        The number, 0 for a dense model.
    """
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 1:
            return count
    return 0


class MoEPolicy(Policy):
    """One mixture-of-experts Hugging Face causal language model and its tokenizer.

    The experts run through transformers' grouped_mm where its kernel exists, on CPU too.
    """

    def check_family(self, config: Any) -> None:
        """Refuse a dense model.

        Args:
            config: The model's text config.

        Raises:
            UserError: Naming DensePolicy.
        """
        if not num_experts(config):
            raise UserError(
                f"MoEPolicy: model_type '{config.model_type}' has no experts; use DensePolicy, or "
                "a family such as " + ", ".join(FAMILIES)
            )
