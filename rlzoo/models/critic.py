"""Critics: what the rest of an answer is worth, token by token."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.models.feeding.layout import Layout, padded
from rlzoo.models.feeding.trunk import hidden_states
from rlzoo.models.log_probs import scatter
from rlzoo.types import Sequences


class Critic(Recorded, nn.Module, ABC):
    """A value for every response token, read where its log-probability is read.

    The head is fp32 and starts at 0, so that the first values are exactly 0.

    Args:
        lr_scale: Learning rate of the critic relative to the policy's.
    """

    def __init__(self, lr_scale: float = 3.0) -> None:
        super().__init__()
        if not lr_scale > 0:
            raise UserError(f"{type(self).__name__}: lr_scale must be > 0, not {lr_scale}")
        self.lr_scale = lr_scale
        self.head: nn.Linear | None = None

    def build(self, policy: Policy) -> None:
        """Make the weights; comes after `policy.load`.

        Args:
            policy: The policy whose answers are judged.
        """
        size = policy.causal_lm.config.get_text_config().hidden_size
        self.head = nn.Linear(size, 1, device=policy.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @abstractmethod
    def values(self, sequences: Sequences, hidden: Tensor) -> Tensor:
        """Predict the return of every response token.

        Args:
            sequences: n rows.
            hidden: (M, H), the `hidden` of the policy's LogProbs for the same rows.

        Returns:
            (n, T) fp32, 0 where the mask is False.
        """

    def _read(self, hidden: Tensor, sequences: Sequences) -> Tensor:
        if self.head is None:
            raise RuntimeError(f"{type(self).__name__}.build() has not been called")
        # Autocast would run the fp32 head in half precision.
        with torch.autocast(hidden.device.type, enabled=False):
            values = self.head(hidden.float()).squeeze(-1)
        return scatter(values, sequences.mask)


class SharedCritic(Critic):
    """A value head on the policy's own hidden states; its loss trains the shared trunk too.

    Args:
        lr_scale: Learning rate of the head relative to the policy's.
    """

    def values(self, sequences: Sequences, hidden: Tensor) -> Tensor:
        """Predict from the policy's hidden states; see `Critic.values`."""
        return self._read(hidden, sequences)


class SeparateCritic(Critic):
    """A value head on a copy of the policy's trunk, with weights of its own.

    Args:
        lr_scale: Learning rate of the critic relative to the policy's.
    """

    def __init__(self, lr_scale: float = 3.0) -> None:
        super().__init__(lr_scale)
        self.trunk: Any = None
        self._layout_of: Callable[[Sequences], Layout] = padded

    def build(self, policy: Policy) -> None:
        """Copy the trunk and make the head; see `Critic.build`."""
        super().build(policy)
        self._layout_of = policy.layout_of
        self.trunk = copy.deepcopy(policy.causal_lm.base_model)

    def values(self, sequences: Sequences, hidden: Tensor) -> Tensor:
        """Predict from the copied trunk, not from ``hidden``; see `Critic.values`."""
        return self._read(hidden_states(self.trunk, self._layout_of(sequences)), sequences)
