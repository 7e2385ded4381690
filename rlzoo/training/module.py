"""The LightningModule that wires the stages of one iteration together."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from torch import Tensor
from typing_extensions import Self

from rlzoo import __version__, distributed
from rlzoo.configuration import Recorded, Undescribable, describe
from rlzoo.configuration.fields import takes_fields_of
from rlzoo.errors import UserError
from rlzoo.filters import Iteration
from rlzoo.models.forward import predict
from rlzoo.rewards.runner import RewardRunner
from rlzoo.rollout.base import keep_pace
from rlzoo.strategies import shard_model, take_update, training_pass
from rlzoo.training.checkpoint import read_checkpoint, rebuilt, with_weights
from rlzoo.training.checks import check_settings, check_trainer
from rlzoo.training.evaluation import Evaluator
from rlzoo.training.experience import finish, judge, reward_stats, rollout_stats, timed
from rlzoo.training.learner import Learner
from rlzoo.training.minibatches import MicroBatch, Minibatch
from rlzoo.training.optimizer import build_optimizer
from rlzoo.training.random_states import collect_rng, restore_rng
from rlzoo.training.settings import Settings
from rlzoo.training.startup import opening_lines, self_check
from rlzoo.types import Experience, Prompt, Prompts, Rewards, Rollouts, SamplingParams, Stats
from rlzoo.types.stats import over_ranks

log = logging.getLogger("rlzoo")


class RLModule(L.LightningModule):
    """One Lightning batch of prompts is one iteration of reinforcement learning.

    Prompts -> rollouts -> rewards -> filters -> advantages -> minibatches -> objective ->
    optimizer, under manual optimization: ``epochs * minibatches`` optimizer steps per iteration.

    The arguments are the fields of `rlzoo.training.settings.Settings`, which documents them.
    """

    @takes_fields_of(Settings)
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        check_settings(settings)
        self.automatic_optimization = False
        self.learner = Learner(settings)
        self.policy, self.critic = settings.policy, settings.critic
        self.runner = RewardRunner(settings.rewards)
        self.evaluator = Evaluator(settings.evaluation, self.runner)
        self.progress = {"iterations": 0, "updates": 0, "tokens": 0, "seconds": 0.0}
        self.before: dict[str, float] | None = None
        self.means: dict[str, float] = {}  # of the last iteration, the same on every rank
        self.last_rollouts: tuple[Rollouts, Rewards] | None = None
        self.run_config: str | None = None
        self._checked = self._configured = False
        self._resumed_rng: dict[str, Any] | None = None

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, **settings: Any
    ) -> Self:
        """Return the module of a checkpoint, its policy and critic with the trained weights.

        Training it further starts a run of its own from these weights: without a cold start, with
        them as the ``initial`` reference. To go on with the same run, give ``ckpt_path`` to
        ``Trainer.fit`` instead.

        Args:
            checkpoint_path: A file of ``rlzoo fit``, or of a Trainer that fitted an `RLModule`.
            **settings: Replace settings of the checkpoint.

        Raises:
            UserError: If rlzoo did not write the file, or it cannot be rebuilt here.
        """
        checkpoint = read_checkpoint(str(checkpoint_path))
        module: Self = rebuilt(checkpoint, model=cls).model
        if settings:
            module = cls(**{**vars(module.settings), **settings})
        with_weights(module.policy, checkpoint)
        if module.critic is not None:
            module.critic.build(module.policy)
            weights = checkpoint.weights("critic.")
            if not weights:  # a sharded checkpoint holds the policy alone
                log.warning("%s holds no critic; it starts anew", checkpoint_path)
            module.critic.load_state_dict(weights, strict=False)
        return module

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self.learner.settings

    @property
    def sampling(self) -> SamplingParams:
        """Length and temperature of rollouts.

        It may be replaced between iterations: rollouts carry what they were drawn with, and the
        learner reads it there.
        """
        return self.settings.sampling

    @sampling.setter
    def sampling(self, params: SamplingParams) -> None:
        self.learner.settings = replace(self.settings, sampling=params)
        check_settings(self.settings)

    def setup(self, stage: str) -> None:
        """Refuse what cannot work, before any weights are loaded."""
        check_trainer(self.settings, self.trainer)
        self.policy.check()

    def configure_model(self) -> None:
        """Load weights, cold start, reference and critic; does nothing the second time."""
        if self._configured:
            return
        self._configured = True
        if self.policy.model is None:  # else `load_from_checkpoint` has loaded trained weights
            self.policy.load()
            if self.settings.cold_start is not None:
                self.settings.cold_start.apply(self.policy, self._data.task)
        self.learner.reference.build(self.policy)
        if self.critic is not None and self.critic.head is None:
            self.critic.build(self.policy)
        frozen = self.learner.reference.frozen
        shard_model(self.trainer.strategy, self.policy, self.critic, frozen)

    def configure_optimizers(self) -> Any:
        """Return one optimizer for policy and critic, and its schedule over updates."""
        return build_optimizer(self.settings, self.trainer)

    def forward(self, *asked: Any) -> dict[str, Any]:
        """Make a training pass, for engines that have to see each of them."""
        return predict(*asked)

    def on_train_start(self) -> None:
        """Say what is about to happen, and put random states back after a resume."""
        self.learner.through = training_pass(self.trainer.model)
        if self._resumed_rng is not None:
            restore_rng(self._resumed_rng)
            self._resumed_rng = None
        if self.trainer.is_global_zero:
            done = int(self.progress["iterations"])
            for line in opening_lines(self.settings, self.trainer, str(self.device), done):
                log.info(line)

    def training_step(self, batch: Prompts, batch_idx: int) -> None:
        """Run one iteration of reinforcement learning."""
        stats, started = Stats(), time.perf_counter()
        seed = self.settings.seed * 1_000_003 + int(self.progress["iterations"])
        rollouts, rewards = self.draw(batch, seed, stats)
        iteration = self._iteration(seed, stats)
        for each in self.settings.filters:
            rollouts, rewards = each(rollouts, rewards, iteration)
        if not self._checked:
            self_check(self.settings, rollouts)
            self._checked = True
        with timed("log_probs", stats):
            experience = self.learner.experience(rollouts, rewards, seed, stats)
        with timed("training", stats):
            for update, minibatch in enumerate(self.learner.cut(experience, seed)):
                self.take_step(experience, minibatch, stats, on_policy=update == 0)
        stats.merge([reward_stats(rewards, self.runner.names), rollout_stats(rollouts)])
        self.last_rollouts = rollouts, rewards
        self._log(stats, rollouts, time.perf_counter() - started)

    def draw(
        self, prompts: Prompts, seed: int, stats: Stats, weight: int = 1
    ) -> tuple[Rollouts, Rewards]:
        """Sample and judge G answers to every prompt; weight 0 adds to the first draw's time."""
        settings = self.settings
        with timed("rollout", stats, weight):
            size, params = settings.group_size, settings.sampling
            rollouts = settings.sampler.sample(self.policy, prompts, size, params, seed)
        with timed("rewards", stats, weight):
            return rollouts, judge(self.runner, rollouts)

    def _iteration(self, seed: int, stats: Stats) -> Iteration:
        """Return what filters may ask for."""

        def redraw(prompts: Prompts, turn: int) -> tuple[Rollouts, Rewards]:
            return self.draw(prompts, seed + turn * 10**12, stats, 0)

        def fresh(turn: int, positions: Sequence[int]) -> list[Prompt]:
            found: list[Prompt] = self._data.reserve(
                int(self.progress["iterations"]), turn, positions
            )
            return found

        return Iteration(
            estimator=self.settings.estimator,
            judge=self.evaluator.judge,
            draw=redraw,
            fresh=fresh,
            keep_pace=lambda: keep_pace(self.policy, self.settings.sampler, self.sampling),
            stats=stats,
        )

    @property
    def _data(self) -> Any:
        return self.trainer.datamodule  # type: ignore[attr-defined]

    def take_step(
        self, experience: Experience, minibatch: Minibatch, stats: Stats, *, on_policy: bool
    ) -> None:
        """Take one optimizer step over the micro-batches of a minibatch."""
        optimizer: Any = self.optimizers()

        def loss(micro: MicroBatch) -> Tensor:
            share = self.learner.loss(experience, minibatch, micro, stats, on_policy=on_policy)
            # DDP averages gradients over ranks, and each rank holds a share of one sum.
            return share * distributed.world_size()

        losses = [partial(loss, micro) for micro in minibatch.micro_batches]
        model, limit = self.trainer.model, self.settings.max_grad_norm
        norm, finite = take_update(model, optimizer, losses, limit, self.manual_backward)
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
        means = finish(over_ranks(stats).means())
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
        self.evaluator.update(self.policy, self.settings.sampler, self.sampling, batch)

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
        config, left_out = self._config()
        checkpoint["rlzoo"] = {
            "version": __version__,
            "config": config,
            "left_out": left_out,
            "progress": dict(self.progress),
            "before": self.before,
            "rng": distributed.gather_objects(collect_rng()),
            "control": self.learner.control_state(),
        }
        for name, p in self.named_parameters(remove_duplicate=False):  # tied weights too
            if not p.requires_grad:
                checkpoint["state_dict"].pop(name, None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take counters and random states back; frozen weights come from their own source."""
        if "rlzoo" not in checkpoint:
            raise UserError("ckpt_path: the file was not written by rlzoo; give one that was")
        saved = checkpoint["rlzoo"]
        self.progress, self.before = dict(saved["progress"]), saved["before"]
        self.learner.load_control_state(saved.get("control", {}))
        if len(saved["rng"]) == distributed.world_size():
            self._resumed_rng = saved["rng"][distributed.rank()]
        own = self.state_dict()
        weights = checkpoint.setdefault("state_dict", {})  # DeepSpeed has loaded them by itself
        for name, p in self.named_parameters(remove_duplicate=False):
            if not p.requires_grad:
                weights.setdefault(name, own[name])

    def _config(self) -> tuple[str, dict[str, str]]:
        """Return the run's configuration as YAML, and settings that it cannot carry.

        Where objects were made in Python, they are described; ``rlzoo generate``, ``export`` and
        ``inspect`` read checkpoints of either kind.
        """
        if self.run_config is not None:
            return self.run_config, {}
        parts: dict[str, Mapping[str, Any]] = {"model": vars(self.settings)}
        data = getattr(self._trainer, "datamodule", None)
        if isinstance(data, Recorded):
            parts["data"] = data.given()
        config: dict[str, dict[str, Any]] = {name: {} for name in parts}
        left_out: dict[str, str] = {}
        for section, settings in parts.items():
            for name, value in settings.items():
                try:
                    config[section][name] = describe(value)
                except Undescribable:
                    left_out[f"{section}.{name}"] = repr(value)
        return yaml.safe_dump(config, sort_keys=False), left_out

    def carry(self, config: str) -> None:
        """Take the configuration of the run, as YAML, into every checkpoint."""
        self.run_config = config
