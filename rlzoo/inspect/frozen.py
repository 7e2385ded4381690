"""Frozen answers of a checkpoint, and the policy that moves on from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlzoo.advantages import Advantage, GroupNormalized, Outcome
from rlzoo.errors import UserError
from rlzoo.filters import Iteration
from rlzoo.models.base import Policy
from rlzoo.ops import Denominators, aggregation_weights, token_ratio
from rlzoo.strategies.master_weights import with_masters
from rlzoo.strategies.stepping import take_update
from rlzoo.training.checkpoint import Checkpoint, rebuilt, with_weights
from rlzoo.training.data import PromptDataModule
from rlzoo.training.experience import judge, over_micro_batches
from rlzoo.training.minibatches import micro_batches
from rlzoo.training.module import RLModule
from rlzoo.types import Experience, Prompts, Rewards, Rollouts, Sequences, Stats


@dataclass(frozen=True)
class InspectedRun:
    """A run as its checkpoint describes it.

    Attributes:
        module: Everything the run was made of; its policy holds the trained weights.
        data: The run's prompts.
        optimizer_state: As saved, or None where it cannot be taken up.
        iterations: Finished when the checkpoint was written.
    """

    module: RLModule
    data: PromptDataModule
    optimizer_state: dict[str, Any] | None
    iterations: int


@dataclass(frozen=True)
class Frozen:
    """Answers with their rewards, and what the weights that sampled said about them.

    Attributes:
        rollouts: N answers.
        rewards: Theirs.
        mask: (N, T) bool, the tokens that train.
        old_log_probs: (N, T) under the checkpoint's weights.
        log_probs: (N, T) under the weights the objectives are looked at.
        entropy: (N, T) under those weights.
        micro_batch_tokens: Most tokens fed per forward pass.
    """

    rollouts: Rollouts
    rewards: Rewards
    mask: Tensor
    old_log_probs: Tensor
    log_probs: Tensor
    entropy: Tensor
    micro_batch_tokens: int

    @property
    def temperature(self) -> float:
        """Temperature of the answers."""
        return self.rollouts.params.temperature

    @property
    def length(self) -> int:
        """Longest answer, the constant of ``constant-length``."""
        return self.rollouts.params.max_new_tokens

    @property
    def experience(self) -> Experience:
        """The answers in the form that is cut into micro-batches."""
        blank = torch.zeros_like(self.old_log_probs)
        return Experience(self.rollouts, self.mask, blank, self.old_log_probs)

    @property
    def denominators(self) -> Denominators:
        """Counts of one step over all answers."""
        return Denominators.count(self.mask, self.rollouts.group_ids)

    def advantages(self, estimator: Advantage) -> Tensor:
        """Return an estimator's (N, T) advantages of these answers, in float64."""
        doubled = replace(self.rewards, totals=self.rewards.totals.double())
        outcome = Outcome.of(self.rollouts, doubled)
        return estimator(outcome).advantages.double()


def inspected(checkpoint: Checkpoint) -> InspectedRun:
    """Rebuild a run from a checkpoint alone.

    Raises:
        UserError: If its configuration names what is not there.
    """
    parts = rebuilt(checkpoint, model=RLModule, data=PromptDataModule)
    module: RLModule = parts.model
    data: PromptDataModule = parts.data
    with_weights(module.policy, checkpoint)
    states = checkpoint.content.get("optimizer_states") or []
    state = states[0] if len(states) == 1 and module.critic is None else None
    return InspectedRun(module, data, state, checkpoint.iterations)


def freeze(run: InspectedRun, prompts: int, group_size: int, seed: int) -> Frozen:
    """Draw prompts of the training split, answer them once, and judge the answers once.

    The run's filters mark answers as in training, but for those that draw others.

    Args:
        run: What ``inspected`` returned.
        prompts: P.
        group_size: G.
        seed: Seed of the choice of prompts and of the answers.

    Returns:
        The answers, not yet seen by other weights than those that sampled.

    Raises:
        UserError: If there are too few prompts.
    """
    module, data, settings = run.module, run.data, run.module.settings
    examples = data.task.examples("train", data.train_size, data.seed)
    if len(examples) < prompts:
        raise UserError(f"prompts {prompts}: the task has {len(examples)} training prompts")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    chosen = [examples[i] for i in order[:prompts].tolist()]
    rows = data.tokenize(chosen, "train", module.policy)
    batch = Prompts(tuple(rows), tuple(range(len(rows))))
    rollouts = settings.sampler.sample(module.policy, batch, group_size, settings.sampling, seed)
    rewards = judge(module.runner, rollouts)
    for each in settings.filters:
        if not each.draws:
            rollouts, rewards = each(rollouts, rewards, _iteration(module))
    blank = torch.zeros_like(rollouts.log_probs)
    mask = rollouts.training_mask(rewards)
    frozen = Frozen(rollouts, rewards, mask, blank, blank, blank, settings.micro_batch_tokens)
    frozen = seen_by(module.policy, frozen)
    return replace(frozen, old_log_probs=frozen.log_probs)


def _iteration(module: RLModule) -> Iteration:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("a filter that draws has to say so in its attribute `draws`")

    judge_index = module.evaluator.judge
    estimator = module.settings.estimator
    return Iteration(estimator, judge_index, refuse, refuse, lambda: None, Stats())


def seen_by(policy: Policy, frozen: Frozen) -> Frozen:
    """Return the same answers with log-probs and entropies of the policy as it is now."""
    policy.training_mode()

    def both(sequences: Sequences) -> dict[str, Tensor]:
        predicted = policy.log_probs(sequences, frozen.temperature, True)
        assert predicted.entropy is not None
        return {"log_probs": predicted.log_probs, "entropy": predicted.entropy}

    every = torch.arange(len(frozen.rollouts))
    budget = frozen.micro_batch_tokens, policy.feed
    known = over_micro_batches(both, frozen.experience, every, *budget)
    return replace(frozen, log_probs=known["log_probs"], entropy=known["entropy"])


def move(run: InspectedRun, frozen: Frozen, updates: int) -> tuple[Frozen, str]:
    """Move the policy by a plain objective on the frozen answers, and look at them again.

    Each update minimizes ``-sum_it w_it r_it A_i``, ``w_it = 1 / (N |y_i|)``, ``r_it`` the token
    ratio to the weights that sampled, ``A_i`` the group-normalized reward: GRPO without its clip,
    so that nothing but the learning rate holds the policy back.

    Args:
        run: Its policy is changed in place, by its optimizer's settings and gradient clip.
        frozen: The answers.
        updates: Optimizer steps over all answers.

    Returns:
        The answers as the moved policy sees them, and where the optimizer's state came from.
    """
    if not updates:
        return frozen, "no update"
    module, experience = run.module, frozen.experience
    parameters = [p for p in module.policy.parameters() if p.requires_grad]
    optimizer: Any = with_masters(module.settings.optimizer, [{"params": parameters}])
    state = take_state(optimizer, run.optimizer_state)
    advantages = frozen.advantages(GroupNormalized())
    weights = aggregation_weights(frozen.mask, frozen.denominators, "sequence-mean") * advantages
    rows = (advantages != 0).any(-1).nonzero().flatten()
    parts = rows_of_parts(experience, rows, frozen.micro_batch_tokens)
    optimizer.zero_grad()

    def loss(part: Tensor) -> Tensor:
        predicted = module.policy.log_probs(frozen.rollouts.sequences(part), frozen.temperature)
        width = predicted.log_probs.shape[1]
        ratio = token_ratio(predicted.log_probs, frozen.old_log_probs[part, :width])
        return -(weights[part, :width] * ratio).sum()

    losses = [partial(loss, part) for part in parts]
    for _ in range(updates):
        take_update(module.policy, optimizer, losses, module.settings.max_grad_norm)
    return seen_by(module.policy, frozen), state


def rows_of_parts(experience: Experience, rows: Tensor, max_tokens: int) -> list[Tensor]:
    """Return the rows of each micro-batch."""
    return [part.rows for part in micro_batches(experience, rows, max_tokens) if len(part.rows)]


def take_state(optimizer: Any, state: dict[str, Any] | None) -> str:
    """Give an optimizer the checkpoint's moments, at the full learning rate.

    Args:
        optimizer: A fresh one.
        state: As saved, or None.

    Returns:
        Where its state comes from, for the reader.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    if state is None:
        return "fresh optimizer state"
    try:
        optimizer.load_state_dict(state)
    except ValueError:
        return "fresh optimizer state"
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return "the checkpoint's optimizer state"
