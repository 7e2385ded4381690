"""From a checkpoint to one set of answers that stays as it is, and a policy that moves on."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
import yaml
from jsonargparse import ArgumentParser
from torch import Tensor

from rlzoo.advantages import Advantage, GroupNormalized, Outcome
from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.ops import Denominators, aggregation_weights, token_ratio
from rlzoo.strategies.master_weights import stepped, with_masters
from rlzoo.training.data import PromptDataModule, PromptDataset, collate
from rlzoo.training.experience import Scored, score, score_rows
from rlzoo.training.minibatches import micro_batches
from rlzoo.training.module import RLModule
from rlzoo.types import Experience, Rollouts, Sequences

LoadPolicy = Callable[[str], Policy]


@dataclass(frozen=True)
class Run:
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
        scored: Their rewards.
        mask: (N, T) bool, the tokens that train.
        old_log_probs: (N, T) under the checkpoint's weights.
        log_probs: (N, T) under the weights the objectives are looked at.
        entropy: (N, T) under those weights.
        length: L of ``constant-length``.
        temperature: T of the answers.
        micro_batch_tokens: Most tokens fed per forward pass.
    """

    rollouts: Rollouts
    scored: Scored
    mask: Tensor
    old_log_probs: Tensor
    log_probs: Tensor
    entropy: Tensor
    length: int
    temperature: float
    micro_batch_tokens: int

    @property
    def experience(self) -> Experience:
        """The answers in the form that is cut into micro-batches."""
        return Experience(self.rollouts, self.mask, torch.zeros_like(self.old_log_probs))

    @property
    def denominators(self) -> Denominators:
        """Counts of one step over all answers."""
        return Denominators.count(self.mask, self.rollouts.group_ids)

    def advantages(self, estimator: Advantage) -> Tensor:
        """Return an estimator's (N, T) advantages of these answers, in float64."""
        outcome = Outcome(
            scores=self.scored.scores.double(),
            valid=self.scored.valid,
            group_ids=self.rollouts.group_ids,
            mask=self.mask,
            components=self.scored.components(),
            weights=torch.tensor(self.scored.weights),
            lengths=self.rollouts.lengths(),
        )
        return estimator(outcome).advantages.double()


def rebuild(ckpt_path: str, load_policy: LoadPolicy) -> Run:
    """Rebuild a run from a checkpoint alone.

    Args:
        ckpt_path: Checkpoint of ``rlzoo fit``.
        load_policy: Rebuilds a policy from such a file, and refuses what is none.

    Returns:
        The run, with the trained weights.

    Raises:
        UserError: If its configuration names what is not there.
    """
    policy = load_policy(ckpt_path)
    checkpoint = torch.load(ckpt_path, map_location="cpu", weights_only=True)
    config = yaml.safe_load(checkpoint["rlzoo"]["config"])
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(RLModule, "model")
    parser.add_class_arguments(PromptDataModule, "data")
    try:
        known = parser.parse_object({name: config[name] for name in ("model", "data")})
        parts = parser.instantiate_classes(known)
    except (KeyError, ArgumentError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"ckpt_path '{ckpt_path}' cannot be rebuilt here: {why}") from error
    module: RLModule = parts.model
    module.policy = module.learner.policy = policy
    states = checkpoint.get("optimizer_states") or []
    state = states[0] if len(states) == 1 and module.critic is None else None
    return Run(module, parts.data, state, int(checkpoint["rlzoo"]["progress"]["iterations"]))


def freeze(run: Run, prompts: int, group_size: int, seed: int) -> Frozen:
    """Draw prompts of the training split, answer them once, and judge the answers once.

    Args:
        run: What ``rebuild`` returned.
        prompts: P.
        group_size: G.
        seed: Seed of the choice of prompts and of the answers.

    Returns:
        The answers, not yet seen by other weights than those that sampled.

    Raises:
        UserError: If there are too few prompts.
    """
    module, data = run.module, run.data
    data.trainer = cast(Any, SimpleNamespace(lightning_module=module))
    examples = data.task.examples("train", data.train_size, data.seed)
    if len(examples) < prompts:
        raise UserError(f"prompts {prompts}: the task has {len(examples)} training prompts")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    chosen = data.tokenise([examples[i] for i in order[:prompts].tolist()], "train")
    batch = collate([PromptDataset(chosen)[i, i] for i in range(len(chosen))])
    rollouts = module.sampler.sample(module.policy, batch, group_size, module.sampling, seed)
    scored = score(module.runner, rollouts)
    mask = rollouts.mask & scored.valid[:, None]
    if module.learner.mask_truncated:
        mask = mask & rollouts.terminated[:, None]
    blank = torch.zeros_like(rollouts.log_probs)
    sizes = (module.sampling.max_new_tokens, module.sampling.temperature)
    frozen = Frozen(
        rollouts, scored, mask, blank, blank, blank, *sizes, module.learner.micro_batch_tokens
    )
    return seen_by(module.policy, frozen, first=True)


def seen_by(policy: Policy, frozen: Frozen, *, first: bool = False) -> Frozen:
    """Return the same answers scored by the policy as it is now.

    Args:
        policy: The weights.
        frozen: The answers.
        first: Whether these are the weights that sampled.

    Returns:
        The answers with new log-probabilities and entropies.
    """
    policy.training_mode()

    def both(sequences: Sequences) -> dict[str, Tensor]:
        scores = policy.score(sequences, frozen.temperature, True)
        assert scores.entropy is not None
        return {"log_probs": scores.log_probs, "entropy": scores.entropy}

    every = torch.arange(len(frozen.rollouts))
    known = score_rows(both, frozen.experience, every, frozen.micro_batch_tokens, policy.feed)
    old = known["log_probs"] if first else frozen.old_log_probs
    return Frozen(**{**vars(frozen), **known, "old_log_probs": old})


def move(run: Run, frozen: Frozen, updates: int) -> tuple[Frozen, str]:
    """Move the policy by a plain objective on the frozen answers, and score them again.

    Each update minimises ``-sum_it w_it r_it A_i``, ``w_it = 1 / (N |y_i|)``, ``r_it`` the token
    ratio to the weights that sampled, ``A_i`` the group-normalised reward: GRPO without its clip,
    so that nothing but the learning rate holds the policy back.

    Args:
        run: Its policy is changed in place, by its optimizer's settings and gradient clip.
        frozen: The answers.
        updates: K optimizer steps over all answers.

    Returns:
        The answers as the moved policy sees them, and where the optimizer's state came from.
    """
    if not updates:
        return frozen, "no update"
    module, experience = run.module, frozen.experience
    parameters = [p for p in module.policy.parameters() if p.requires_grad]
    optimizer: Any = with_masters(module.make_optimizer, [{"params": parameters}])
    state = take_state(optimizer, run.optimizer_state)
    advantages = frozen.advantages(GroupNormalized())
    weights = aggregation_weights(frozen.mask, frozen.denominators, "sequence-mean") * advantages
    rows = (advantages != 0).any(-1).nonzero().flatten()
    parts = rows_of_parts(experience, rows, frozen.micro_batch_tokens)
    for _ in range(updates):
        optimizer.zero_grad()
        for part in parts:
            scores = module.policy.score(frozen.rollouts.sequences(part), frozen.temperature)
            width = scores.log_probs.shape[1]
            ratio = token_ratio(scores.log_probs, frozen.old_log_probs[part, :width])
            loss = -(weights[part, :width] * ratio).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        limit = module.max_grad_norm or float("inf")
        torch.nn.utils.clip_grad_norm_(stepped(optimizer), limit)
        optimizer.step()
    optimizer.zero_grad()
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
