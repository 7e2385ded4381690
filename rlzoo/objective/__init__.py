"""The loss: an algorithm with aggregation, KL, entropy bonus and corrections."""

from rlzoo.objective.corrections import Correction
from rlzoo.objective.loss import KLPenalty, Loss, policy_loss, value_loss

__all__ = ["Correction", "KLPenalty", "Loss", "policy_loss", "value_loss"]
