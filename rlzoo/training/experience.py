"""Parts of an iteration: samples for rewards, passes without gradients, batches, metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rlzoo.models.feeding.feeds import Feed
from rlzoo.objective.loss import KLPenalty
from rlzoo.objective.ratio_stats import finish_spread
from rlzoo.rewards.base import Sample
from rlzoo.rewards.runner import RewardRunner
from rlzoo.training.minibatches import PADDED, micro_batches
from rlzoo.types import Experience, LogProbs, PolicyBatch, Rewards, Rollouts, Sequences
from rlzoo.types.stats import Stats


def samples_of(rollouts: Rollouts) -> list[Sample]:
    """Return the answers in the form rewards read: text and numbers, no tensors."""
    terminated, lengths = rollouts.terminated.tolist(), rollouts.lengths().tolist()
    rows = []
    for row, completion in enumerate(rollouts.completions):
        prompt = rollouts.prompt(row)
        rows.append(
            Sample(
                row=row,
                prompt=prompt.text,
                completion=completion,
                target=prompt.target,
                terminated=terminated[row],
                num_tokens=lengths[row],
                columns=prompt.columns,
            )
        )
    return rows


def judge(runner: RewardRunner, rollouts: Rollouts) -> Rewards:
    """Ask every reward about every answer.

    Args:
        runner: Holds the K rewards and enforces their contract.
        rollouts: N answers.

    Returns:
        N rows of K rewards, and their weighted sums.
    """
    table = runner.evaluate(samples_of(rollouts))
    combined = runner.combine(table)
    device = rollouts.mask.device
    totals = torch.tensor([0.0 if x is None else x for x in combined], device=device)
    valid = torch.tensor([x is not None for x in combined], dtype=torch.bool, device=device)
    return Rewards(table, totals, valid, tuple(runner.weights))


@torch.no_grad()
def over_micro_batches(
    function: Callable[[Sequences], dict[str, Tensor]],
    experience: Experience,
    rows: Tensor,
    max_tokens: int,
    feed: Feed = PADDED,
) -> dict[str, Tensor]:
    """Run a function over some rows without gradients, a micro-batch at a time.

    Args:
        function: Sequences of n rows to named (n, t) tensors; the (n, S, L, k) ``experts`` go to
            the record of the iteration's routing instead.
        experience: Holds the rollouts.
        rows: (n,) long.
        max_tokens: Most tokens fed at a time.
        feed: How rows are fed.

    Returns:
        Named (N, T) tensors, 0 in rows that were not asked for.
    """
    shape = experience.mask.shape
    filled: dict[str, Tensor] = {}
    for micro in micro_batches(experience, rows, max_tokens, feed=feed):
        found = function(experience.sequences(micro.rows))
        experts = found.pop("experts", None)
        if experts is not None and experience.routing is not None and not micro.padding:
            experience.routing.keep(micro.rows, experts)
        for name, values in found.items():
            full = filled.setdefault(name, values.new_zeros(shape))
            if not micro.padding:
                full[micro.rows, : values.shape[1]] = values
    return filled


def policy_batch(
    experience: Experience, rows: Tensor, predicted: LogProbs, mask: Tensor, kl: KLPenalty
) -> PolicyBatch:
    """Return what an objective sees of some rows.

    Args:
        experience: Of the iteration.
        rows: (n,) long.
        predicted: Of these rows under the current weights.
        mask: (n, t) bool, the tokens that train.
        kl: A penalty that the reward carries leaves no reference for the loss.

    Returns:
        Tensors (n, t).
    """
    rollouts, width = experience.rollouts, mask.shape[1]

    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows, :width]

    return PolicyBatch(
        log_probs=predicted.log_probs,
        old_log_probs=experience.old_log_probs[rows, :width],
        advantages=experience.advantages[rows, :width],
        mask=mask,
        rollout_log_probs=cut(rollouts.log_probs),
        ref_log_probs=None if kl.in_reward else cut(experience.ref_log_probs),
        entropy=predicted.entropy,
        group_ids=rollouts.group_ids[rows],
        token_ids=cut(rollouts.token_ids),
    )


def reward_stats(rewards: Rewards, names: Sequence[str]) -> Stats:
    """Return means and abstentions of the rewards, one by one and combined.

    ``reward/square`` becomes the standard deviation in `finish`.
    """
    stats, valid = Stats(), rewards.valid
    totals = torch.where(valid, rewards.totals.double(), 0.0)
    stats.add("reward/mean", totals.sum(), valid.sum())
    stats.add("reward/square", totals.square().sum(), valid.sum())
    stats.add("reward/abstained", (~valid).sum(), len(valid))
    for k, name in enumerate(names):
        given = [row[k] for row in rewards.table if row[k] is not None]
        stats.add(f"reward/{name}", sum(x for x in given if x is not None), len(given))
    return stats


def rollout_stats(rollouts: Rollouts) -> Stats:
    """Return lengths as sampled, before any mask of the loss, and the share that was cut."""
    stats, lengths = Stats(), rollouts.lengths()
    stats.add("rollout/length", lengths.sum(), len(lengths))
    stats.maximum("rollout/length_max", lengths.max())
    stats.maximum("rollout/length_min", -lengths.min())
    stats.add("rollout/truncated", (~rollouts.terminated).sum(), len(lengths))
    stats.add_masked("rollout/log_prob", rollouts.log_probs, rollouts.mask)
    return stats


def finish(means: dict[str, float]) -> dict[str, float]:
    """Turn the raw moments that merge over ranks into what a person reads.

    Where every reward abstained there is nothing to average: NaN, not the iteration before.
    """
    finish_spread(means)
    for name in ("reward/mean", "policy/clip_fraction"):
        means.setdefault(name, math.nan)
    square = means.pop("reward/square", None)
    if square is not None:
        means["reward/std"] = math.sqrt(max(0.0, square - means["reward/mean"] ** 2))
    weight_square = means.pop("correction/weight_square", None)
    if weight_square is not None:  # 0 where every token was rejected
        share = means["correction/weight_mean"] ** 2 / weight_square if weight_square else 0.0
        means["correction/ess"] = share
    if "rollout/length_min" in means:
        means["rollout/length_min"] = -means["rollout/length_min"]
    if "time/iteration_s" in means:
        named = (v for k, v in means.items() if k.startswith("time/") and k != "time/iteration_s")
        means["time/other_s"] = max(0.0, means["time/iteration_s"] - sum(named))
        means["tokens/sampled_per_s"] = means["tokens/iteration"] / means["time/rollout_s"]
    return means


@contextmanager
def timed(name: str, stats: Stats, weight: int = 1) -> Iterator[None]:
    """Add the seconds that the block takes to ``time/<name>_s``."""
    started = time.perf_counter()
    yield
    stats.add(f"time/{name}_s", time.perf_counter() - started, weight)
