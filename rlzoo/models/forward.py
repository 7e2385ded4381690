"""One pass of policy and critic over some rows, in a form that an engine can look into."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic
from rlzoo.types import Scores, Sequences
from rlzoo.types.expert_choices import Routing


def predict(
    policy: Policy, critic: Critic | None, sequences: Sequences, temperature: float, entropy: bool
) -> dict[str, Any]:
    """Return what the policy says about response tokens, and the critic's values.

    Args:
        policy: The model.
        critic: Value model, or None.
        sequences: n right-padded rows.
        temperature: T of the rollouts.
        entropy: Whether to compute entropies.

    Returns:
        Tensors by name, in nothing but dicts: an engine that has to see the tensors of a training
        pass, because it starts its backward pass there, would not find those of an object.
    """
    scores = policy.score(sequences, temperature, entropy)
    found: dict[str, Any] = {"scores": dict(vars(scores)), "values": None}
    if scores.routing is not None:
        found["scores"]["routing"] = dict(vars(scores.routing))
    if critic is not None and scores.hidden is not None:
        found["values"] = critic.values(sequences, scores.hidden)
    return found


def unpacked(found: dict[str, Any]) -> tuple[Scores, Tensor | None]:
    """Return what `predict` found as Scores and values.

    Args:
        found: From `predict`, tensors replaced or not.

    Returns:
        Scores, and the critic's (n, T) values or None.
    """
    scores = dict(found["scores"])
    if scores["routing"] is not None:
        scores["routing"] = Routing(**scores["routing"])
    return Scores(**scores), found["values"]
