"""Mixtures of experts: the policy, the families of routers it knows, the hooks that watch them."""

from rlzoo.models.moe.families import RouterAdapter
from rlzoo.models.moe.policy import MoEPolicy

__all__ = ["MoEPolicy", "RouterAdapter"]
