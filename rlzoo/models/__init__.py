"""Language models: one class for dense networks, one for mixtures of experts, and critics."""

from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic, SeparateCritic, SharedCritic
from rlzoo.models.dense import DensePolicy
from rlzoo.models.moe.policy import MoEPolicy

__all__ = ["Critic", "DensePolicy", "MoEPolicy", "Policy", "SeparateCritic", "SharedCritic"]
