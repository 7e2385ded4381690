"""The learner, between rollouts and optimizer: log-probs, advantages, minibatches, loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.advantages import Outcome
from rlzoo.models.forward import predict, unpacked
from rlzoo.models.reference import Reference
from rlzoo.objective import KLPenalty, policy_loss, value_loss
from rlzoo.ops import kl_penalty
from rlzoo.training import minibatches
from rlzoo.training.control import State, load_states, move
from rlzoo.training.experience import over_micro_batches, policy_batch
from rlzoo.training.expert_tracking import ExpertTracker, follow
from rlzoo.training.minibatches import MicroBatch, Minibatch
from rlzoo.training.settings import Settings
from rlzoo.types import Experience, Rewards, Rollouts, Sequences, Stats


@dataclass
class Learner:
    """What turns answers and their rewards into losses. It knows nothing of Lightning.

    Attributes:
        settings: Those of the run.
        reference: Reference policy; falsy where there is none.
        kl: The penalty at its present coefficient, which a rule may move.
        entropy_coefficient: Weight of the entropy bonus, which a rule may move.
        through: Makes a training pass: `predict`, or an engine around it.
        experts: Follows the routing of a mixture of experts, once an iteration has begun.
    """

    settings: Settings
    reference: Reference = field(init=False)
    kl: KLPenalty = field(init=False)
    entropy_coefficient: float = field(init=False)
    through: Callable[..., dict[str, Any]] = predict
    experts: ExpertTracker | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.reference = Reference(settings.reference)
        self.kl, self.entropy_coefficient = settings.kl, settings.entropy_coefficient
        for controller in settings.control:
            in_kl = controller.setting == "kl"
            controller.start(settings.kl.coefficient if in_kl else settings.entropy_coefficient)
        self._set_coefficients()

    def experience(
        self, rollouts: Rollouts, rewards: Rewards, seed: int, stats: Stats
    ) -> Experience:
        """Find out what must be known before the first update, then estimate advantages.

        Args:
            rollouts: This rank's answers, after the filters.
            rewards: The rewards of these answers.
            seed: Seed of the iteration.
            stats: Receives what there is to log.

        Returns:
            Experience ready to be cut into minibatches.
        """
        settings, mask = self.settings, rollouts.training_mask(rewards)
        blank = torch.zeros_like(rollouts.log_probs)
        updates = settings.updates_per_iteration
        self.experts = self.experts or follow(settings.policy, updates)
        record = self.experts.begin(rollouts) if self.experts else None
        experience = Experience(rollouts, mask, blank, blank.clone(), routing=record)
        settings.policy.training_mode()
        known: dict[str, Any] = self._known_before(experience, seed)
        experience = replace(experience, **known)
        penalty = None
        if self.kl.in_reward:
            assert experience.ref_log_probs is not None
            divergence = kl_penalty(
                experience.old_log_probs, experience.ref_log_probs, self.kl.estimator
            )
            stats.add_masked("policy/kl_ref", divergence, mask)
            penalty = self.kl.coefficient * divergence
        outcome = Outcome.of(rollouts, rewards, penalty=penalty, values=experience.values)
        _, silent, groups = settings.estimator.rows_with_signal(outcome)
        stats.add("reward/groups_without_signal", silent, groups)
        estimate = settings.estimator(outcome)
        stats.add_masked("policy/advantage_abs", estimate.advantages.abs(), mask)
        return replace(experience, advantages=estimate.advantages, returns=estimate.returns)

    def _known_before(self, experience: Experience, seed: int) -> dict[str, Tensor]:
        settings, rollouts = self.settings, experience.rollouts
        budget = settings.micro_batch_tokens, settings.policy.feed
        every = torch.arange(len(rollouts), device=experience.mask.device)
        known: dict[str, Tensor] = {}

        def by_policy(sequences: Sequences) -> dict[str, Tensor]:
            asked = settings.policy, settings.critic, sequences, rollouts.params.temperature, False
            predicted, values = unpacked(predict(*asked))
            found = {"old_log_probs": predicted.log_probs}
            found |= {} if values is None else {"values": values}
            return found | (
                {} if predicted.routing is None else {"experts": predicted.routing.chosen}
            )

        def by_reference(sequences: Sequences) -> dict[str, Tensor]:
            temperature = rollouts.params.temperature
            return {"ref_log_probs": self.reference.log_probs(sequences, temperature)}

        whole = settings.critic is not None or self.kl.in_reward
        if whole or settings.policy.router.aux_coefficient:
            known |= over_micro_batches(by_policy, experience, every, *budget)
        elif settings.minibatches > 1:
            # The rows of the first update take their old log-probs from its own pass.
            prompts = len(rollouts.prompts) * distributed.world_size()
            step = minibatches.step_of_rows(rollouts, prompts, 0, settings.minibatches, seed)
            known |= over_micro_batches(by_policy, experience, every[step > 0], *budget)
        if self.reference:
            known |= over_micro_batches(by_reference, experience, every, *budget)
        return known

    def cut(self, experience: Experience, seed: int) -> Iterator[Minibatch]:
        """Cut the rollouts into epochs, minibatches and micro-batches.

        Args:
            experience: What ``experience`` returned.
            seed: Seed of the iteration.

        Returns:
            One minibatch per optimizer step.
        """
        return minibatches.minibatches(
            experience,
            prompts=len(experience.rollouts.prompts) * distributed.world_size(),
            epochs=self.settings.epochs,
            count=self.settings.minibatches,
            micro_batch_tokens=self.settings.micro_batch_tokens,
            seed=seed,
            unit=self.settings.algorithm.unit,
            feed=self.settings.policy.feed,
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
        settings, params = self.settings, experience.rollouts.params
        sequences = experience.sequences(micro.rows)
        asked = settings.policy, settings.critic, sequences, params.temperature
        predicted, values = unpacked(self.through(*asked, self.wants_entropy))
        width = sequences.mask.shape[1]
        mask = experience.mask[micro.rows, :width]
        if micro.padding:
            mask = torch.zeros_like(mask)
        elif on_policy:
            experience.old_log_probs[micro.rows, :width] = predicted.log_probs.detach()
        loss, found = policy_loss(
            settings.algorithm,
            policy_batch(experience, micro.rows, predicted, mask, self.kl),
            minibatch.denominators,
            aggregation=settings.aggregation,
            length=params.max_new_tokens,
            kl=self.kl,
            entropy_coefficient=self.entropy_coefficient,
            corrections=settings.corrections,
        )
        stats.merge([found])
        if self.experts is not None and predicted.routing is not None:
            record, seen = experience.routing, predicted.routing
            loss = loss + self.experts.learn(record, minibatch, micro, seen, on_policy=on_policy)
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
            clip=settings.value.clip,
        )
        stats.merge([of_value.stats])
        return loss + settings.value.coefficient * of_value.loss

    @property
    def wants_entropy(self) -> bool:
        """Whether the update has to compute entropies."""
        return self.settings.watches_entropy or bool(self.entropy_coefficient)

    def adapt(self, means: Mapping[str, float], answers: int) -> dict[str, float]:
        """Move the coefficients that are under control, once an iteration is over.

        Args:
            means: Its metrics, the same on every rank.
            answers: N over all ranks.

        Returns:
            The coefficients that the iteration used and what the routers did, to be logged.
        """
        used = move(self.settings.control, means, answers)
        self._set_coefficients()
        return used | (self.experts.finish() if self.experts else {})

    def control_state(self) -> dict[str, State]:
        """Return what a checkpoint keeps of the control, by setting."""
        return {controller.setting: controller.state() for controller in self.settings.control}

    def load_control_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Take it back; a rule that is new in this run starts from the configuration."""
        load_states(self.settings.control, state)
        self._set_coefficients()

    def _set_coefficients(self) -> None:
        for controller in self.settings.control:
            if controller.setting == "kl":
                self.kl = replace(self.kl, coefficient=controller.coefficient)
            else:
                self.entropy_coefficient = controller.coefficient
