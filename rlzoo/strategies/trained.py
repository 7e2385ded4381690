"""The module that trains, as far as a strategy may ask of it."""

from __future__ import annotations

from typing import Any, Protocol

from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic


class TrainedSettings(Protocol):
    """The settings that a strategy reads."""

    @property
    def max_grad_norm(self) -> float:
        """Gradients are scaled down to this norm; 0 is off."""


class Trained(Protocol):
    """A LightningModule with a policy and settings; ``RLModule`` is one."""

    policy: Policy
    critic: Critic | None
    trainer: Any

    @property
    def settings(self) -> TrainedSettings:
        """Those of the run."""

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Take weights in."""
