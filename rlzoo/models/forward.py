"""One pass of policy and critic over some rows, in a form that an engine can look into."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic
from rlzoo.types import LogProbs, Sequences
from rlzoo.types.expert_choices import Routing


def predict(
    policy: Policy, critic: Critic | None, sequences: Sequences, temperature: float, entropy: bool
) -> dict[str, Any]:
    """Return what the policy says about response tokens, and the critic's values.

    Args:
        policy: The model.
        critic: Value model, or None.
        sequences: n rows.
        temperature: The one that the rollouts were drawn at.
        entropy: Whether to compute entropies.

    Returns:
        Tensors by name, in nothing but dicts: an engine that has to see the tensors of a training
        pass, because it starts its backward pass there, would not find those of an object.
    """
    predicted = policy.log_probs(sequences, temperature, entropy)
    found: dict[str, Any] = {"log_probs": dict(vars(predicted)), "values": None}
    if predicted.routing is not None:
        found["log_probs"]["routing"] = dict(vars(predicted.routing))
    if critic is not None and predicted.hidden is not None:
        found["values"] = critic.values(sequences, predicted.hidden)
    return found


def unpacked(found: dict[str, Any]) -> tuple[LogProbs, Tensor | None]:
    """Return what `predict` found as LogProbs and values.

    Args:
        found: From `predict`, tensors replaced or not.

    Returns:
        LogProbs, and the critic's (n, T) values or None.
    """
    fields = dict(found["log_probs"])
    if fields["routing"] is not None:
        fields["routing"] = Routing(**fields["routing"])
    return LogProbs(**fields), found["values"]
