"""The LightningModule that wires the stages of one iteration together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import OptimizerCallable

from rlzoo import distributed
from rlzoo.advantages import Advantage, default_advantage
from rlzoo.algorithms.base import Algorithm
from rlzoo.algorithms.grpo import GRPO
from rlzoo.filters.dynamic_sampling import DynamicSampling
from rlzoo.models.base import Policy
from rlzoo.models.critic import Critic, SeparateCritic
from rlzoo.models.forward import predict
from rlzoo.models.reference import Reference
from rlzoo.objective.corrections import Correction
from rlzoo.objective.loss import KLPenalty
from rlzoo.ops import Aggregation
from rlzoo.rewards.base import Reward
from rlzoo.rewards.runner import RewardRunner
from rlzoo.rollout.base import Sampler, keep_pace
from rlzoo.rollout.native import NativeSampler
from rlzoo.strategies import accumulating, clip_and_step, shard_model, training_pass
from rlzoo.training.checkpoint_state import load_state, restore_rng, save_state
from rlzoo.training.checks import check_settings, check_trainer
from rlzoo.training.cold_start import ColdStart
from rlzoo.training.control import Controller
from rlzoo.training.evaluation import Evaluator
from rlzoo.training.experience import Scored, finish, reward_stats, rollout_stats, score, timed
from rlzoo.training.learner import Learner
from rlzoo.training.minibatches import Minibatch
from rlzoo.training.optimizer import build_optimizer
from rlzoo.training.settings import Evaluation, Schedule, ValueSettings
from rlzoo.training.startup import plan, self_check
from rlzoo.types import Experience, Prompt, Prompts, Rollouts, SamplingParams
from rlzoo.types.stats import Stats

log = logging.getLogger("rlzoo")


class RLModule(L.LightningModule):
    """One Lightning batch of prompts is one iteration of reinforcement learning.

    Prompts -> rollouts -> rewards -> advantages -> minibatches -> objective -> optimizer, under
    manual optimisation: ``epochs * minibatches`` optimizer steps per iteration.

    Args:
        policy: The language model that is trained.
        rewards: What answers are scored by; their weighted sum is the reward.
        algorithm: Ratio and clip, from ``rlzoo.algorithms`` or a class of your own.
        sampler: How answers are drawn.
        sampling: Length and temperature of rollouts.
        evaluation: How held-out prompts are answered and judged.
        group_size: G, answers per prompt.
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
        mask_truncated: Leave cut answers out of the loss; their rewards count in their group.
        drop_zero_advantage: Skip groups whose answers all earned the same, and with them their KL
            term; they still count in the denominators.
        dynamic_sampling: Replace groups that are all right or all wrong by fresh prompts, or none.
        optimizer: Optimizer class and its settings.
        schedule: Learning rate over updates.
        max_grad_norm: Gradients are scaled down to this norm; 0 is off.
        cold_start: Supervised fit on the task's demonstrations before RL, or none.
        self_check_tolerance: Largest |ratio - 1| between two scorings by the same weights.
        seed: Seed of rollouts and minibatches; seed_everything by default.
    """

    def __init__(
        self,
        policy: Policy,
        rewards: list[Reward],
        algorithm: Algorithm = GRPO(),  # noqa: B008 - a default that jsonargparse can show
        sampler: Sampler = NativeSampler(),  # noqa: B008
        sampling: SamplingParams = SamplingParams(),  # noqa: B008
        evaluation: Evaluation = Evaluation(),  # noqa: B008
        group_size: int = 8,
        epochs: int = 1,
        minibatches: int = 1,
        micro_batch_tokens: int = 16384,
        advantage: Advantage | None = None,
        aggregation: Aggregation | None = None,
        kl: KLPenalty = KLPenalty(),  # noqa: B008
        reference: str = "none",
        critic: Critic | None = None,
        value: ValueSettings = ValueSettings(),  # noqa: B008
        entropy_coefficient: float = 0.0,
        corrections: Sequence[Correction] = (),
        control: Sequence[Controller] = (),
        mask_truncated: bool = False,
        drop_zero_advantage: bool = False,
        dynamic_sampling: DynamicSampling | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        schedule: Schedule = Schedule(),  # noqa: B008
        max_grad_norm: float = 1.0,
        cold_start: ColdStart | None = None,
        self_check_tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        advantage = advantage or default_advantage(algorithm.advantage)
        if critic is None and advantage.needs_values:
            critic = SeparateCritic()
        self.policy, self.critic, self.sampler = policy, critic, sampler
        self.runner = RewardRunner(rewards)
        self.learner = Learner(
            policy=policy,
            algorithm=algorithm,
            advantage=advantage,
            aggregation=aggregation or algorithm.aggregation,
            temperature=sampling.temperature,
            length=sampling.max_new_tokens,
            epochs=epochs,
            minibatches=minibatches,
            micro_batch_tokens=micro_batch_tokens,
            critic=critic,
            reference=Reference(reference),
            kl=kl,
            value=value,
            entropy_coefficient=entropy_coefficient,
            corrections=corrections,
            control=control,
            mask_truncated=mask_truncated,
            drop_zero_advantage=drop_zero_advantage,
        )
        self.sampling, self.group_size = sampling, group_size
        self.make_optimizer, self.schedule = optimizer, schedule
        self.max_grad_norm, self.self_check_tolerance = max_grad_norm, self_check_tolerance
        self.cold_start, self.seed, self.dynamic_sampling = cold_start, seed, dynamic_sampling
        check_settings(self)
        self.evaluator = Evaluator(evaluation, self.runner, sampling)
        self.progress = {"iterations": 0, "updates": 0, "tokens": 0, "seconds": 0.0}
        self.before: dict[str, float] | None = None
        self.means: dict[str, float] = {}  # of the last iteration, the same on every rank
        self.last_rollouts: tuple[Rollouts, Scored] | None = None
        self.run_config: str | None = None
        self._checked = False
        self.resumed_rng: dict[str, Any] | None = None

    def setup(self, stage: str) -> None:
        """Refuse what cannot work, before any weights are loaded."""
        check_trainer(self)
        self.policy.check()

    def configure_model(self) -> None:
        """Load weights, cold start, reference and critic; does nothing the second time."""
        if self.policy.model is not None:
            return
        self.policy.load()
        if self.cold_start is not None:
            self.cold_start.apply(self.policy, self.trainer.datamodule.task)  # type: ignore[attr-defined]
        self.learner.reference.build(self.policy)
        if self.critic is not None:
            self.critic.build(self.policy)
        shard_model(self)

    def configure_optimizers(self) -> Any:
        """Return one optimizer for policy and critic, and its schedule over updates."""
        return build_optimizer(self)

    def forward(self, *asked: Any) -> dict[str, Any]:
        """Make a training pass, for engines that have to see each of them."""
        return predict(*asked)

    def on_train_start(self) -> None:
        """Say what is about to happen, and put random states back after a resume."""
        self.learner.through = training_pass(self)
        if self.resumed_rng is not None:
            restore_rng(self.resumed_rng)
            self.resumed_rng = None
        if self.trainer.is_global_zero:
            for line in plan(self):
                log.info(line)

    def training_step(self, batch: Prompts, batch_idx: int) -> None:
        """Run one iteration of reinforcement learning."""
        stats, started = Stats(), time.perf_counter()
        seed = self.seed * 1_000_003 + int(self.progress["iterations"])
        rollouts, scored = self.draw(batch, seed, stats)
        if self.dynamic_sampling is not None:
            rollouts, scored = self.dynamic_sampling(
                rollouts,
                scored,
                judge=self.evaluator.judge,
                fresh=self.reserve,
                draw=lambda prompts, turn: self.draw(prompts, seed + turn * 10**12, stats, 0),
                stats=stats,
                idle=lambda: keep_pace(self.policy, self.sampler, self.sampling),
            )
        if not self._checked:
            self_check(self, rollouts)
            self._checked = True
        with timed("scoring", stats):
            experience = self.learner.experience(rollouts, scored, seed, stats)
        with timed("training", stats):
            for update, minibatch in enumerate(self.learner.cut(experience, seed)):
                self.take_step(experience, minibatch, stats, on_policy=update == 0)
        stats.merge([reward_stats(scored, self.runner.rewards), rollout_stats(rollouts)])
        self.last_rollouts = rollouts, scored
        self._log(stats, rollouts, time.perf_counter() - started)

    def draw(
        self, prompts: Prompts, seed: int, stats: Stats, weight: int = 1
    ) -> tuple[Rollouts, Scored]:
        """Sample and score G answers to every prompt; weight 0 adds to the first draw's time."""
        with timed("rollout", stats, weight):
            size, params = self.group_size, self.sampling
            rollouts = self.sampler.sample(self.policy, prompts, size, params, seed)
        with timed("rewards", stats, weight):
            return rollouts, score(self.runner, rollouts)

    def reserve(self, turn: int, positions: Sequence[int]) -> list[Prompt]:
        """Return fresh prompts for dynamic sampling."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        fresh: list[Prompt] = data.reserve(int(self.progress["iterations"]), turn, positions)
        return fresh

    def take_step(
        self, experience: Experience, minibatch: Minibatch, stats: Stats, *, on_policy: bool
    ) -> None:
        """Take one optimizer step over the micro-batches of a minibatch."""
        optimizer: Any = self.optimizers()
        for i, micro in enumerate(minibatch.micro_batches):
            last = i + 1 == len(minibatch.micro_batches)
            with accumulating(self.trainer.model, last=last):
                loss = self.learner.loss(experience, minibatch, micro, stats, on_policy=on_policy)
                # DDP averages gradients over ranks, and each rank holds a share of one sum.
                self.manual_backward(loss * distributed.world_size())
        norm, finite = clip_and_step(self, optimizer)
        if finite:
            stats.add("optim/grad_norm", norm, 1)
        else:
            log.warning("update skipped: the gradient norm is %s", norm)
        share = 1 / distributed.world_size()
        stats.add("optim/skipped", 0 if finite else share, share)
        stats.add("optim/without_signal", share if minibatch.denominators.tokens == 0 else 0, share)
        stats.add("optim/lr", optimizer.param_groups[0]["lr"], 1)
        for name in ("policy/loss", "value/loss")[: 1 if self.critic is None else 2]:
            stats.add(name, 0.0, share)
        scheduler: Any = self.lr_schedulers()
        scheduler.step()
        self.progress["updates"] += 1

    def _log(self, stats: Stats, rollouts: Rollouts, seconds: float) -> None:
        stats.add("time/iteration_s", seconds, 1)
        stats.add("tokens/iteration", rollouts.mask.sum(), 1 / distributed.world_size())
        means = finish(distributed.merge_stats(stats).means())
        means |= self.learner.adapt(means, len(rollouts) * distributed.world_size())
        self.progress["iterations"] += 1
        self.progress["tokens"] += int(means["tokens/iteration"])
        self.progress["seconds"] += means["time/iteration_s"]
        means["tokens/total"] = float(self.progress["tokens"])
        means["tokens/per_s"] = means["tokens/iteration"] / means["time/iteration_s"]
        means["updates"] = float(self.progress["updates"])
        self.means = means
        shown = {"reward/mean", "tokens/per_s"}
        for name, value in means.items():
            self.log(name, value, prog_bar=name in shown, batch_size=1, rank_zero_only=True)

    def validation_step(self, batch: Prompts, batch_idx: int) -> None:
        """Answer and judge a batch of held-out prompts."""
        self.evaluator.update(self.policy, self.sampler, batch)

    def on_validation_epoch_end(self) -> None:
        """Log the held-out metrics; the ones before training are kept for the summary."""
        values = self.evaluator.compute()
        if self.trainer.sanity_checking:
            if not self.progress["iterations"]:  # a resumed run keeps what it began with
                self.before = values
                if self.logger is not None:
                    self.logger.log_metrics(values, step=0)
            return
        for name, value in values.items():
            self.log(name, value, prog_bar=name == "val/accuracy", rank_zero_only=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add counters, random states and the configuration; drop frozen weights."""
        save_state(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take counters and random states back; frozen weights come from their own source."""
        load_state(self, checkpoint)
