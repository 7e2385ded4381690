"""Between rollouts and the optimizer: scores, advantages, minibatches, loss. No Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.advantages import Advantage, Outcome
from rlzoo.algorithms.base import Algorithm
from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic
from rlzoo.models.forward import predict, unpacked
from rlzoo.models.reference import Reference
from rlzoo.objective.corrections import Correction
from rlzoo.objective.loss import KLPenalty, policy_loss, value_loss
from rlzoo.ops import Aggregation, kl_penalty
from rlzoo.training.control import Controller, State, load_states, move
from rlzoo.training.experience import Scored, policy_batch, score_rows
from rlzoo.training.expert_tracking import RoutingLearner, follow
from rlzoo.training.minibatches import MicroBatch, Minibatch, step_of_rows
from rlzoo.training.minibatches import minibatches as cut_minibatches
from rlzoo.training.settings import ValueSettings
from rlzoo.types import Experience, Rollouts, Sequences
from rlzoo.types.stats import Stats


@dataclass
class Learner:
    """Everything that turns scored answers into losses; the arguments are those of ``RLModule``.

    Attributes:
        policy: The model that is trained.
        algorithm: Ratio and clip.
        advantage: Estimator.
        aggregation: How token losses become one number.
        temperature: T of the rollouts, and so of every score.
        length: Longest answer, the constant of ``constant-length``.
        epochs: Passes over the rollouts.
        minibatches: Optimizer steps per pass.
        micro_batch_tokens: Most tokens fed per forward pass.
        critic: Value model, or None.
        reference: Reference policy; false where there is none.
        kl: KL penalty.
        value: Weight and clip of the value loss.
        entropy_coefficient: Weight of the entropy bonus.
        corrections: Detached multipliers of the objective.
        control: Rules that move the weights of KL and entropy bonus between iterations.
        mask_truncated: Leave cut answers out of the loss.
        drop_zero_advantage: Do not score rows of groups whose rewards are all equal.
        through: Makes a training pass: `predict`, or an engine around it.
    """

    policy: Policy
    algorithm: Algorithm
    advantage: Advantage
    aggregation: Aggregation
    temperature: float
    length: int
    epochs: int = 1
    minibatches: int = 1
    micro_batch_tokens: int = 16384
    critic: Critic | None = None
    reference: Reference = field(default_factory=Reference)
    kl: KLPenalty = field(default_factory=KLPenalty)
    value: ValueSettings = field(default_factory=ValueSettings)
    entropy_coefficient: float = 0.0
    corrections: Sequence[Correction] = ()
    control: Sequence[Controller] = ()
    mask_truncated: bool = False
    drop_zero_advantage: bool = False
    through: Callable[..., dict[str, Any]] = predict
    routing: RoutingLearner | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for controller in self.control:
            in_kl = controller.setting == "kl"
            controller.start(self.kl.coefficient if in_kl else self.entropy_coefficient)
        self._set_coefficients()

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps per iteration."""
        return self.epochs * self.minibatches

    @property
    def wants_entropy(self) -> bool:
        """Whether the update has to compute entropies."""
        needs = self.algorithm.needs.union(*(correction.needs for correction in self.corrections))
        watched = any(controller.watches == "policy/entropy" for controller in self.control)
        return bool(self.entropy_coefficient) or watched or "entropy" in needs

    def experience(self, rollouts: Rollouts, scored: Scored, seed: int, stats: Stats) -> Experience:
        """Score what must be known before the first update, then estimate advantages.

        Args:
            rollouts: This rank's answers.
            scored: Their rewards.
            seed: Seed of the iteration.
            stats: Receives what there is to log.

        Returns:
            Experience ready to be cut into minibatches.
        """
        mask = rollouts.mask & scored.valid[:, None]
        if self.mask_truncated:
            mask = mask & rollouts.terminated[:, None]
        blank = torch.zeros_like(rollouts.log_probs)
        self.routing = self.routing or follow(self.policy, self.updates_per_iteration)
        record = self.routing.begin(rollouts) if self.routing else None
        experience = Experience(rollouts, mask, blank, blank.clone(), routing=record)
        self.policy.training_mode()
        known: dict[str, Any] = self._scores_before(experience, seed)
        experience = replace(experience, **known)
        penalty = None
        if self.kl.in_reward:
            assert experience.old_log_probs is not None
            assert experience.ref_log_probs is not None
            divergence = kl_penalty(
                experience.old_log_probs, experience.ref_log_probs, self.kl.estimator
            )
            stats.add_masked("policy/kl_ref", divergence, mask)
            penalty = self.kl.coefficient * divergence
        outcome = Outcome(
            scores=scored.scores,
            valid=scored.valid,
            group_ids=rollouts.group_ids,
            mask=mask,
            penalty=penalty,
            values=experience.values,
            components=scored.components(),
            weights=torch.tensor(scored.weights),
            lengths=rollouts.lengths(),
        )
        signal, silent, groups = self.advantage.rows_with_signal(outcome)
        stats.add("reward/groups_without_signal", silent, groups)
        estimate = self.advantage(outcome)
        stats.add_masked("policy/advantage_abs", estimate.advantages.abs(), mask)
        return replace(
            experience, advantages=estimate.advantages, returns=estimate.returns, signal=signal
        )

    def _scores_before(self, experience: Experience, seed: int) -> dict[str, Tensor]:
        rollouts = experience.rollouts
        budget = self.micro_batch_tokens, self.policy.feed
        every = torch.arange(len(rollouts), device=experience.mask.device)
        known: dict[str, Tensor] = {}
        if self.critic is not None or self.kl.in_reward or self.policy.router.aux_coefficient:
            known |= score_rows(self._by_policy, experience, every, *budget)
        elif self.minibatches > 1:
            prompts = len(rollouts.prompts) * distributed.world_size()
            step = step_of_rows(rollouts, prompts, 0, self.minibatches, seed)
            later = every[step > 0]
            known |= score_rows(self._by_policy, experience, later, *budget)
        if self.reference:
            known |= score_rows(self._by_reference, experience, every, *budget)
        return known

    def _by_policy(self, sequences: Sequences) -> dict[str, Tensor]:
        found = predict(self.policy, self.critic, sequences, self.temperature, False)
        scores, values = unpacked(found)
        known = {"old_log_probs": scores.log_probs} | ({} if values is None else {"values": values})
        return known | ({} if scores.routing is None else {"experts": scores.routing.chosen})

    def _by_reference(self, sequences: Sequences) -> dict[str, Tensor]:
        return {"ref_log_probs": self.reference.log_probs(sequences, self.temperature)}

    def cut(self, experience: Experience, seed: int) -> Iterator[Minibatch]:
        """Cut the rollouts into epochs, minibatches and micro-batches.

        Args:
            experience: What ``experience`` returned.
            seed: Seed of the iteration.

        Returns:
            One minibatch per optimizer step.
        """
        return cut_minibatches(
            experience,
            prompts=len(experience.rollouts.prompts) * distributed.world_size(),
            epochs=self.epochs,
            count=self.minibatches,
            micro_batch_tokens=self.micro_batch_tokens,
            seed=seed,
            keep=experience.signal if self.drop_zero_advantage else None,
            unit=self.algorithm.unit,
            feed=self.policy.feed,
        )

    def loss(
        self,
        experience: Experience,
        minibatch: Minibatch,
        micro: MicroBatch,
        stats: Stats,
        *,
        on_policy: bool,
    ) -> Tensor:
        """Return a micro-batch's share of the loss of its optimizer step.

        Args:
            experience: The iteration's.
            minibatch: The step.
            micro: The rows.
            stats: Receives what there is to log.
            on_policy: Whether the weights are still those that sampled: then the old log-probs are
                the new ones, detached, and are kept for later epochs.

        Returns:
            0-d, to be summed over micro-batches and ranks.
        """
        sequences = experience.sequences(micro.rows)
        asked = (self.policy, self.critic, sequences, self.temperature, self.wants_entropy)
        scores, values = unpacked(self.through(*asked))
        width = sequences.mask.shape[1]
        mask = experience.mask[micro.rows, :width]
        if micro.padding:
            mask = torch.zeros_like(mask)
        elif on_policy:
            assert experience.old_log_probs is not None
            experience.old_log_probs[micro.rows, :width] = scores.log_probs.detach()
        loss, found = policy_loss(
            self.algorithm,
            policy_batch(experience, micro.rows, scores, mask, self.kl),
            minibatch.denominators,
            aggregation=self.aggregation,
            length=self.length,
            kl=self.kl,
            entropy_coefficient=self.entropy_coefficient,
            corrections=self.corrections,
        )
        stats.merge([found])
        if self.routing is not None and scores.routing is not None:
            record, seen = experience.routing, scores.routing
            loss = loss + self.routing.learn(record, minibatch, micro, seen, on_policy=on_policy)
        if values is None:
            return loss
        assert experience.values is not None
        assert experience.returns is not None
        of_value = value_loss(
            values,
            experience.values[micro.rows, :width],
            experience.returns[micro.rows, :width],
            mask,
            minibatch.denominators,
            clip=self.value.clip,
        )
        stats.merge([of_value.stats])
        return loss + self.value.coefficient * of_value.loss

    def adapt(self, means: Mapping[str, float], answers: int) -> dict[str, float]:
        """Move the coefficients that are under control, once an iteration is over.

        Args:
            means: Its metrics, the same on every rank.
            answers: N over all ranks.

        Returns:
            The coefficients that the iteration used and what the routers did, to be logged.
        """
        used = move(self.control, means, answers)
        self._set_coefficients()
        return used | (self.routing.finish() if self.routing else {})

    def control_state(self) -> dict[str, State]:
        """Return what a checkpoint keeps of the control, by setting."""
        return {controller.setting: controller.state() for controller in self.control}

    def load_control_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Take it back; a rule that is new in this run starts from the configuration."""
        load_states(self.control, state)
        self._set_coefficients()

    def _set_coefficients(self) -> None:
        for controller in self.control:
            if controller.setting == "kl":
                self.kl = replace(self.kl, coefficient=controller.coefficient)
            else:
                self.entropy_coefficient = controller.coefficient
