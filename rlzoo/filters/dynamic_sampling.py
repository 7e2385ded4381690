"""Dynamic sampling: groups that teach nothing give way to fresh prompts, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.advantages import Groups
from rlzoo.errors import UserError
from rlzoo.filters.base import Filter, Iteration
from rlzoo.types import Prompts, Rewards, Rollouts


class DynamicSampling(Filter):
    """Gives groups whose answers are all right or all wrong to fresh prompts, a few times at most.

    A silent group's place in the batch goes to a fresh prompt, so that seeds, minibatches and ranks
    stay as they are. Silence is judged by the task's own outcome (``evaluation.accuracy``), not by
    the sum of rewards, which a length penalty makes look informative. A group that is still silent
    after the last round stays, and trains on that sum: its advantages are 0 only where the sums are
    equal too. List this filter before those that mark answers: fresh answers carry no marks.

    Source: DAPO, arXiv 2503.14476, eq. 11 (there without a bound).

    Args:
        max_rounds: Most times that silent groups are sampled anew per iteration.
    """

    draws: ClassVar[bool] = True

    def __init__(self, max_rounds: int = 3) -> None:
        if max_rounds < 1:
            raise UserError(
                f"DynamicSampling: max_rounds must be >= 1, got {max_rounds}; remove it from "
                "model.filters to turn it off"
            )
        self.max_rounds = max_rounds

    def __call__(
        self, rollouts: Rollouts, rewards: Rewards, iteration: Iteration
    ) -> tuple[Rollouts, Rewards]:
        """Replace silent groups; log rounds, replaced groups and the tokens thrown away."""
        rounds, replaced, wasted = 0, 0, 0
        judge, stats = iteration.judge, iteration.stats
        places, device = silent(rollouts, rewards, judge), rollouts.mask.device
        while distributed.any_over_ranks(bool(places), device) and rounds < self.max_rounds:
            rounds += 1
            if not places:
                iteration.keep_pace()
                continue
            positions = [rollouts.prompts.positions[place] for place in places]
            prompts = Prompts(tuple(iteration.fresh(rounds, positions)), tuple(positions))
            rows = _rows(places, rollouts.group_size, rollouts)
            wasted += int(rollouts.mask[rows].sum())
            replaced += len(places)
            drawn = iteration.draw(prompts, rounds)
            rollouts, rewards = substitute(rollouts, rewards, places, *drawn)
            places = silent(rollouts, rewards, judge)
        groups = len(rollouts.prompts)
        stats.maximum("rollout/refill_rounds", rounds)
        stats.add("rollout/refilled_groups", replaced, groups)
        stats.add("rollout/silent_after_refill", len(places), groups)
        stats.add("tokens/discarded", wasted, 1 / distributed.world_size())
        return rollouts, rewards


def silent(rollouts: Rollouts, rewards: Rewards, judge: int) -> list[int]:
    """Return the places, among this rank's prompts, whose answers were all judged the same."""
    verdicts = [row[judge] for row in rewards.table]
    values = torch.tensor([0.0 if v is None else v for v in verdicts])
    valid = torch.tensor([v is not None for v in verdicts], dtype=torch.bool)
    place = torch.arange(len(rollouts)) // max(1, rollouts.group_size)
    return Groups(values, place, valid).constant.nonzero().flatten().tolist()


def substitute(
    rollouts: Rollouts,
    rewards: Rewards,
    places: Sequence[int],
    new_rollouts: Rollouts,
    new_rewards: Rewards,
) -> tuple[Rollouts, Rewards]:
    """Return the batch with the groups at some places replaced.

    Args:
        rollouts: N answers.
        rewards: Theirs.
        places: Indices of prompts.
        new_rollouts: As many groups.
        new_rewards: Their rewards.

    Returns:
        Answers and rewards of the same shapes.
    """
    rows = _rows(places, rollouts.group_size, rollouts)

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, rows, new.to(old.dtype))

    prompts, completions = list(rollouts.prompts.rows), list(rollouts.completions)
    table = list(rewards.table)
    for place, prompt in zip(places, new_rollouts.prompts.rows, strict=True):
        prompts[place] = prompt
    for i, row in enumerate(rows.tolist()):
        completions[row], table[row] = new_rollouts.completions[i], new_rewards.table[i]
    rollouts = replace(
        rollouts,
        prompts=Prompts(tuple(prompts), rollouts.prompts.positions),
        token_ids=put(rollouts.token_ids, new_rollouts.token_ids),
        mask=put(rollouts.mask, new_rollouts.mask),
        terminated=put(rollouts.terminated, new_rollouts.terminated),
        log_probs=put(rollouts.log_probs, new_rollouts.log_probs),
        completions=tuple(completions),
        routing=_with_rows(rollouts.routing, rows, new_rollouts.routing),
        left_out=_unmarked(rollouts.left_out, rows),
        skipped=_unmarked(rollouts.skipped, rows),
    )
    totals = put(rewards.totals, new_rewards.totals)
    return rollouts, replace(
        rewards, table=table, totals=totals, valid=put(rewards.valid, new_rewards.valid)
    )


def _unmarked(marks: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return what earlier filters marked, without the answers that are gone."""
    return None if marks is None else marks.index_fill(0, rows, False)


def _with_rows(old: Tensor | None, rows: Tensor, new: Tensor | None) -> Tensor | None:
    """Return (N, S, ...) with some rows replaced by (n, s, ...), as wide as the wider."""
    if old is None or new is None:
        return None
    width = max(old.shape[1], new.shape[1])
    result = old.new_zeros(old.shape[0], width, *old.shape[2:])
    result[:, : old.shape[1]] = old
    result[rows, : new.shape[1]] = new
    return result


def _rows(places: Sequence[int], group: int, rollouts: Rollouts) -> Tensor:
    device = rollouts.mask.device
    start = torch.tensor(list(places), dtype=torch.long, device=device)[:, None] * group
    return (start + torch.arange(group, device=device)).flatten()
