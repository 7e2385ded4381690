"""Advantage estimators, one per class, over the whole batch of all ranks."""

from rlzoo.advantages.base import (
    Advantage,
    Estimate,
    Outcome,
    rows_with_signal,
    token_rewards,
    whiten,
)
from rlzoo.advantages.gae import GAE, generalized_advantages
from rlzoo.advantages.gdpo import GDPO
from rlzoo.advantages.group import (
    OPO,
    BatchNormalized,
    GroupAdvantage,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    MaxRL,
)
from rlzoo.advantages.groups import Groups
from rlzoo.advantages.pass_at_k import PassAtKAdvantage
from rlzoo.advantages.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from rlzoo.errors import UserError, nearest

__all__ = [
    "ESTIMATORS",
    "GAE",
    "GDPO",
    "OPO",
    "Advantage",
    "BatchNormalized",
    "Estimate",
    "GroupAdvantage",
    "GroupCentered",
    "GroupNormalized",
    "Groups",
    "LeaveOneOut",
    "MaxRL",
    "Outcome",
    "PassAtKAdvantage",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "default_advantage",
    "generalized_advantages",
    "rows_with_signal",
    "token_rewards",
    "whiten",
]

ESTIMATORS: dict[str, type[Advantage]] = {
    cls.name: cls
    for cls in (
        GroupNormalized,
        GroupCentered,
        BatchNormalized,
        LeaveOneOut,
        GAE,
        ReinforcePP,
        ReinforcePPBaseline,
        MaxRL,
        OPO,
        GDPO,
        PassAtKAdvantage,
    )
}
"""Short name to estimator."""


def default_advantage(name: str) -> Advantage:
    """Return the estimator of a short name, with its defaults.

    Raises:
        UserError: If there is none of that name.
    """
    if name not in ESTIMATORS:
        raise UserError(f"advantage '{name}' is unknown; {nearest(name, list(ESTIMATORS))}")
    return ESTIMATORS[name]()
