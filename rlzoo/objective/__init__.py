"""From an algorithm and a batch to a loss: aggregation, KL, entropy, corrections."""

from rlzoo.objective.corrections import Correction
from rlzoo.objective.loss import KLPenalty, Loss, policy_loss, value_loss

__all__ = ["Correction", "KLPenalty", "Loss", "policy_loss", "value_loss"]
