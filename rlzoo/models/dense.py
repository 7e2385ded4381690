"""Models whose every weight takes part in every token."""

from __future__ import annotations

from typing import Any

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.models.moe.policy import num_experts


class DensePolicy(Policy):
    """One dense Hugging Face causal language model and its tokenizer."""

    def check_family(self, config: Any) -> None:
        """Refuse a mixture of experts; see `Weights.check_family`."""
        count = num_experts(config)
        if count:
            raise UserError(
                f"DensePolicy: model_type '{config.model_type}' has {count} experts; use MoEPolicy"
            )
