"""The reference policy of a KL penalty: explicit, frozen, never part of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.types import Sequences


class Reference:
    """Log-probs of tokens under fixed weights.

    It is deliberately not a ``torch.nn.Module``: neither the optimizer, nor a checkpoint, nor
    ``train()`` reaches it, so it is always rebuilt from its own source.

    Args:
        source: ``none``; ``initial`` for the policy as it was before training; ``adapter_base`` for
            a LoRA policy with its adapter switched off; or a path to another model.
    """

    def __init__(self, source: str = "none") -> None:
        if source not in ("none", "initial", "adapter_base") and not Path(source).exists():
            raise UserError(
                f"model.reference '{source}' is neither none, initial, adapter_base nor an "
                "existing folder; choose one of these"
            )
        self.source = source
        self._frozen: Policy | None = None
        self._policy: Policy | None = None

    def __bool__(self) -> bool:
        return self.source != "none"

    @property
    def frozen(self) -> Policy | None:
        """The copy whose weights are kept, if there is one."""
        return self._frozen

    def build(self, policy: Policy) -> None:
        """Take the reference; call once the policy has its initial weights, before it trains."""
        if self.source == "adapter_base":
            self._policy = policy
        elif self.source == "initial":
            self._frozen = policy.frozen_copy()
        elif self.source != "none":
            other = policy.sibling(self.source)
            other.load()
            self._frozen = other.frozen_copy()

    @torch.no_grad()
    def log_probs(self, sequences: Sequences, temperature: float) -> Tensor:
        """Return (n, T) log-probs under the reference, which routes as it likes."""
        sequences = replace(sequences, experts=None)
        if self._frozen is not None:
            self._frozen.to(sequences.input_ids.device)
            return self._frozen.log_probs(sequences, temperature).log_probs
        if self._policy is None:
            raise RuntimeError("the reference policy is used before it is built")
        with self._policy.base_weights():
            return self._policy.log_probs(sequences, temperature).log_probs
