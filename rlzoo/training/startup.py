"""The start of a run: its plan in words, and the self-check."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from rlzoo.algorithms.base import Algorithm
from rlzoo.errors import UserError
from rlzoo.objective.gradient_weight import ratio_unit
from rlzoo.training.settings import Settings
from rlzoo.types import Rollouts

log = logging.getLogger("rlzoo")


def total_iterations(settings: Settings, trainer: Any) -> int | None:
    """Return the iterations of the whole run, over all epochs; None where it has no end."""
    ends = []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        ends.append(trainer.num_training_batches * trainer.max_epochs)
    if trainer.max_steps >= 0:
        ends.append(math.ceil(trainer.max_steps / settings.updates_per_iteration))
    return int(min(ends)) if ends else None


def opening_lines(settings: Settings, trainer: Any, device: str, done: int) -> list[str]:
    """Return what the run will do, in a few lines.

    Args:
        settings: Those of the run, its models loaded.
        trainer: Lightning's.
        device: Where the policy is.
        done: Iterations finished before.
    """
    policy, sampling = settings.policy, settings.sampling
    prompts = getattr(getattr(trainer, "datamodule", None), "prompts_per_iteration", None)
    answers = "?" if prompts is None else prompts * settings.group_size
    total = total_iterations(settings, trainer)
    size = getattr(trainer.strategy, "whole_size", torch.Tensor.numel)  # of parameters in shares
    parameters = sum(size(p) for p in policy.parameters())
    lines = [
        f"policy: {type(policy).__name__} {parameters:,} parameters on {device}",
        f"objective: {type(settings.algorithm).__name__}"
        f" {_shown(settings.algorithm)}, {settings.aggregation},"
        f" advantage {type(settings.estimator).__name__}",
        f"plan: {'endless' if total is None else total} iterations"
        f" x {settings.updates_per_iteration} updates; an iteration is"
        f" {prompts} prompts x {settings.group_size} = {answers} answers,"
        f" {settings.epochs} x {settings.minibatches} minibatches",
        f"sampling: temperature {sampling.temperature}, top_p {sampling.top_p}, top_k"
        f" {sampling.top_k or 'off'}, at most {sampling.max_new_tokens} tokens; nothing is taken"
        " from the checkpoint's generation_config",
    ]
    lines[1:1] = policy.describe()
    if settings.reference != "none":
        lines.append(f"reference: {settings.reference}, kl {_shown(settings.kl)}")
    for name in ("filters", "corrections", "control"):
        if chosen := getattr(settings, name):
            lines.append(f"{name}: " + ", ".join(type(x).__name__ + _shown(x) for x in chosen))
    if done:
        lines.append(f"resumed: {done} iterations are done already")
    if total is not None and done >= total:
        lines.append("nothing is left to do; raise trainer.max_epochs to go on")
    if settings.updates_per_iteration == 1:
        lines.append(
            "one update per iteration: the ratio is exactly 1, so a loss near 0 and a clip"
            " fraction of 0 are as they should be"
        )
    return lines


def _shown(thing: object) -> str:
    settings = {k: v for k, v in vars(thing).items() if not k.startswith("_")}
    return "(" + ", ".join(f"{k}={v}" for k, v in settings.items()) + ")"


@torch.no_grad()
def self_check(settings: Settings, rollouts: Rollouts) -> None:
    """Compare two passes of the policy over the first answers, and both with the sampler.

    Logs max |ratio - 1|, and the gap between the sampler's log-probs and the trainer's.

    Raises:
        UserError: If the two passes differ by more than ``self_check_tolerance``.
    """
    rows = torch.arange(min(32, len(rollouts)), device=rollouts.mask.device)
    sequences, policy = rollouts.sequences(rows), settings.policy
    temperature = rollouts.params.temperature
    policy.training_mode()
    first = policy.log_probs(sequences, temperature).log_probs
    second = policy.log_probs(sequences, temperature).log_probs
    alone = policy.log_probs(rollouts.sequences(rows[:1]), temperature).log_probs
    mask = sequences.mask
    worst = float(((second - first).exp() - 1).abs()[mask].max())
    gap = (first - rollouts.log_probs[rows, : mask.shape[1]]).abs()[mask]
    log.info(
        "self-check: max |ratio - 1| %.1e; sampler against trainer, nats per token: "
        "mean %.1e, max %.1e",
        worst,
        float(gap.mean()),
        float(gap.max()),
    )
    if not worst <= settings.self_check_tolerance:
        raise UserError(
            f"self-check: two passes over the same answers give max |ratio - 1| = {worst:.2e}, "
            f"over model.self_check_tolerance {settings.self_check_tolerance}; something random is "
            "left in the model (dropout, router jitter), or raise the tolerance"
        )
    shape_noise = (alone[0] - first[0, : alone.shape[1]])[mask[0, : alone.shape[1]]]
    _warn_of_noise(
        settings.algorithm, max(float(shape_noise.abs().mean()), float(gap.mean())), rollouts
    )


def _warn_of_noise(algorithm: Algorithm, noise: float, rollouts: Rollouts) -> None:
    band = min(getattr(algorithm, "clip_low", 1.0), getattr(algorithm, "clip_high", 1.0))
    length = float(rollouts.lengths().float().mean())
    if noise > band and (ratio_unit(algorithm) == "token" or noise / length**0.5 > band):
        log.warning(
            "log-probabilities differ by %.1e nats per token between two computations of the same "
            "weights: over answers of %.0f tokens that exceeds the clip band %.1e, so noise alone "
            "will clip; widen clip_low and clip_high or use float32",
            noise,
            length,
            band,
        )
