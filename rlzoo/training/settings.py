"""Every setting of a run, declared and documented once; small groups refuse what cannot be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from lightning.pytorch.cli import OptimizerCallable

from rlzoo.advantages import Advantage, default_advantage
from rlzoo.algorithms.base import Algorithm
from rlzoo.algorithms.grpo import GRPO
from rlzoo.errors import UserError
from rlzoo.filters import Filter
from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic, SeparateCritic
from rlzoo.objective import Correction, KLPenalty
from rlzoo.ops import Aggregation
from rlzoo.rewards.base import Reward
from rlzoo.rollout.base import Sampler
from rlzoo.rollout.native import NativeSampler
from rlzoo.training.cold_start import ColdStart
from rlzoo.training.control import Controller
from rlzoo.types import SamplingParams


@dataclass(frozen=True)
class Schedule:
    """Learning rate over updates: linear warm-up, then decay.

    Args:
        warmup_updates: Optimizer steps over which the rate rises from 0 to its full value.
        decay: ``constant``, or ``linear`` or ``cosine`` down to ``final_share`` at the last update.
        final_share: Share of the full rate that is left at the end; not used by ``constant``.
    """

    warmup_updates: int = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    final_share: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_updates < 0:
            raise UserError(f"schedule.warmup_updates must be >= 0, got {self.warmup_updates}")
        if not 0 <= self.final_share <= 1:
            raise UserError(f"schedule.final_share must be in [0, 1], got {self.final_share}")
        if self.final_share and self.decay == "constant":
            raise UserError(
                f"schedule.final_share {self.final_share} has no effect with decay=constant; "
                "choose decay=linear or cosine"
            )

    # Not transformers' schedulers: their warm-up begins at a rate of 0, so that the first update of
    # a run does nothing, and only one of them keeps a share of the rate at the end.
    def factor(self, update: int, total: float) -> float:
        """Return the share of the full rate for one update.

        Args:
            update: Updates done so far.
            total: Updates of the whole run.

        Returns:
            A number in [0, 1].
        """
        if update < self.warmup_updates:
            return (update + 1) / (self.warmup_updates + 1)
        if self.decay == "constant":
            return 1.0
        done = (update - self.warmup_updates) / max(1.0, total - self.warmup_updates)
        done = min(1.0, done)
        left = 1 - done if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.final_share + (1 - self.final_share) * left


@dataclass(frozen=True)
class ValueSettings:
    """How the critic's loss enters.

    Args:
        coefficient: Weight of the value loss beside the policy loss.
        clip: How far a value may move in one iteration before its error stops counting.
    """

    coefficient: float = 1.0
    clip: float = 0.2

    def __post_init__(self) -> None:
        if not self.coefficient > 0:
            raise UserError(f"value.coefficient must be > 0, got {self.coefficient}")
        if not self.clip > 0:
            raise UserError(f"value.clip must be > 0 (use .inf to turn it off), got {self.clip}")


@dataclass(frozen=True)
class Evaluation:
    """How held-out prompts are answered and judged.

    Args:
        samples: k, answers drawn per prompt for avg@k and pass@k.
        temperature: Temperature of those answers; 0 is greedy.
        accuracy: Name of the reward that decides whether an answer is right (it must be 1); the
            first reward if not given.
        seed: Seed of the answers, the same at every evaluation.
    """

    samples: int = 4
    temperature: float = 1.0
    accuracy: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"evaluation.samples must be >= 1, got {self.samples}")
        if not self.temperature >= 0:
            raise UserError(f"evaluation.temperature must be >= 0, got {self.temperature}")


@dataclass(frozen=True)
class Settings:
    """Everything that ``model:`` of a configuration, or the constructor of ``RLModule``, may say.

    Args:
        policy: The language model that is trained.
        rewards: What judges answers; their weighted sum is the reward.
        algorithm: Ratio and clip, from ``rlzoo.algorithms`` or a class of your own.
        sampler: How answers are drawn.
        sampling: Length and temperature of rollouts.
        evaluation: How held-out prompts are answered and judged.
        group_size: G, answers per prompt.
        filters: Which answers train: steps between rewards and advantages, in this order.
        epochs: Passes over the rollouts of an iteration.
        minibatches: Optimizer steps per pass; must divide prompts * G.
        micro_batch_tokens: Most tokens fed, prompts and padding included, per forward and backward.
        advantage: Estimator; by default the one the algorithm names.
        aggregation: How token losses become one number; by default the algorithm's.
        kl: Penalty that holds the policy near the reference.
        reference: none, initial, adapter_base, or the folder of another model.
        critic: Value model of an estimator that needs one; a separate copy of the trunk by default.
        value: Weight and clip of the critic's loss.
        entropy_coefficient: Weight of the entropy bonus.
        corrections: Weights against the gap to the sampler, stale answers or certain tokens.
        control: Rules that move the weights of KL and entropy bonus between iterations.
        optimizer: Optimizer class and its settings.
        schedule: Learning rate over updates.
        max_grad_norm: Gradients are scaled down to this norm; 0 is off.
        cold_start: Supervised fit on the task's demonstrations before RL, or none.
        self_check_tolerance: Largest |ratio - 1| between two passes over the same answers by the
            same weights.
        seed: Seed of rollouts and minibatches; seed_everything by default.
    """

    policy: Policy
    rewards: list[Reward]
    algorithm: Algorithm = field(default_factory=GRPO)
    sampler: Sampler = field(default_factory=NativeSampler)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    evaluation: Evaluation = field(default_factory=Evaluation)
    group_size: int = 8
    filters: Sequence[Filter] = ()
    epochs: int = 1
    minibatches: int = 1
    micro_batch_tokens: int = 16384
    advantage: Advantage | None = None
    aggregation: Aggregation | None = None
    kl: KLPenalty = field(default_factory=KLPenalty)
    reference: str = "none"
    critic: Critic | None = None
    value: ValueSettings = field(default_factory=ValueSettings)
    entropy_coefficient: float = 0.0
    corrections: Sequence[Correction] = ()
    control: Sequence[Controller] = ()
    optimizer: OptimizerCallable = torch.optim.AdamW
    schedule: Schedule = field(default_factory=Schedule)
    max_grad_norm: float = 1.0
    cold_start: ColdStart | None = None
    self_check_tolerance: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        # What is left open is decided here, once, so that no reader has to ask again.
        if self.advantage is None:
            object.__setattr__(self, "advantage", default_advantage(self.algorithm.advantage))
        if self.aggregation is None:
            object.__setattr__(self, "aggregation", self.algorithm.aggregation)
        if self.critic is None and self.estimator.needs_values:
            object.__setattr__(self, "critic", SeparateCritic())

    @property
    def estimator(self) -> Advantage:
        """The advantage estimator, given or the algorithm's own."""
        assert self.advantage is not None
        return self.advantage

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps per iteration."""
        return self.epochs * self.minibatches

    @property
    def watches_entropy(self) -> bool:
        """Whether a term of the loss or a rule has to know entropies at every update."""
        needs = self.algorithm.needs.union(*(correction.needs for correction in self.corrections))
        watched = any(controller.watches == "policy/entropy" for controller in self.control)
        return bool(self.entropy_coefficient) or watched or "entropy" in needs
