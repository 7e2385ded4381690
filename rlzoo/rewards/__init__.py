"""Rewards: classes that judge answers, and the runner that enforces their contract."""

from rlzoo.rewards.base import Reward, Sample
from rlzoo.rewards.exact_match import ExactMatch, FirstLineMatch
from rlzoo.rewards.format import RegexFormat, TagFormat
from rlzoo.rewards.function import FunctionReward
from rlzoo.rewards.length import LengthPenalty, OverlongPenalty
from rlzoo.rewards.math_answer import MathAnswer
from rlzoo.rewards.reasoning_gym import ReasoningGymReward
from rlzoo.rewards.runner import RewardRunner, combine

__all__ = [
    "ExactMatch",
    "FirstLineMatch",
    "FunctionReward",
    "LengthPenalty",
    "MathAnswer",
    "OverlongPenalty",
    "ReasoningGymReward",
    "RegexFormat",
    "Reward",
    "RewardRunner",
    "Sample",
    "TagFormat",
    "combine",
]
