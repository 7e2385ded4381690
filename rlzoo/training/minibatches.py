"""Epochs, minibatches and micro-batches of an iteration. Pure, seeded, the same on every rank."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.algorithms.base import Unit
from rlzoo.errors import UserError
from rlzoo.models.feeding.feeds import Feed, Load, PaddedFeed
from rlzoo.ops import Denominators
from rlzoo.types import Experience, Rollouts

PADDED = PaddedFeed()


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together.

    Attributes:
        rows: (n,) long, rows of this rank's experience.
        padding: True for a pass that only keeps ranks in step and must contribute exactly 0.
    """

    rows: Tensor
    padding: bool = False


@dataclass(frozen=True)
class Minibatch:
    """One optimizer step.

    Attributes:
        epoch: Which pass over the rollouts.
        rows: (n,) long, this rank's rows.
        denominators: Counts over all ranks.
        micro_batches: As many on every rank.
    """

    epoch: int
    rows: Tensor
    denominators: Denominators
    micro_batches: tuple[MicroBatch, ...]


def check_divisible(prompts: int, group_size: int, minibatches: int, world_size: int) -> None:
    """Refuse sizes that cannot be cut evenly.

    Args:
        prompts: P over all ranks.
        group_size: G.
        minibatches: Updates per epoch.
        world_size: Number of ranks.

    Raises:
        UserError: Naming the rule and the nearest values that fit it.
    """
    total = prompts * group_size
    if minibatches < 1 or total % minibatches:
        fits = [m for m in range(1, total + 1) if total % m == 0]
        near = sorted(sorted(fits, key=lambda m: abs(m - minibatches))[:2])
        raise UserError(
            f"model.minibatches {minibatches} does not divide data.prompts_per_iteration * "
            f"model.group_size = {prompts} * {group_size} = {total}; "
            f"use {' or '.join(map(str, near))}"
        )
    if prompts % world_size:
        below = max(prompts - prompts % world_size, world_size)
        raise UserError(
            f"data.prompts_per_iteration {prompts} does not divide over {world_size} processes; "
            f"use {below} or {below + world_size}"
        )


def order(prompts: int, epoch: int, seed: int) -> Tensor:
    """Return the order of prompt positions in an epoch: as drawn first, then reshuffled.

    Args:
        prompts: P over all ranks.
        epoch: Pass over the rollouts.
        seed: Seed of the iteration.

    Returns:
        (P,) long; entry k is the position that stands k-th.
    """
    if epoch == 0:
        return torch.arange(prompts)
    # Another seed for each of up to 1,000,003 epochs, none of them another iteration's.
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(prompts, generator=generator)


def step_of_rows(rollouts: Rollouts, prompts: int, epoch: int, count: int, seed: int) -> Tensor:
    """Return (N,) long, the minibatch of an epoch that each of this rank's rows belongs to."""
    group = rollouts.group_size
    place = torch.empty(prompts, dtype=torch.long)
    place[order(prompts, epoch, seed)] = torch.arange(prompts)
    slots = place[rollouts.group_ids.cpu()] * group + torch.arange(len(rollouts)) % group
    return (slots * count // (prompts * group)).to(rollouts.mask.device)


def minibatches(
    experience: Experience,
    *,
    prompts: int,
    epochs: int,
    count: int,
    micro_batch_tokens: int,
    seed: int,
    unit: Unit = "row",
    feed: Feed = PADDED,
) -> Iterator[Minibatch]:
    """Yield the optimizer steps of an iteration, epoch by epoch.

    A minibatch is a set of global rows, ``position * G + answer``, that does not depend on how
    many ranks there are; it holds whole groups whenever ``count`` divides P.

    Args:
        experience: This rank's rows.
        prompts: P over all ranks.
        epochs: Passes over the rollouts.
        count: Minibatches per epoch.
        micro_batch_tokens: Most tokens fed in one micro-batch; a longer row goes alone.
        seed: Seed of the iteration.
        unit: What a micro-batch must not cut.
        feed: How rows are fed, and so what they cost.

    Yields:
        One minibatch per optimizer step.
    """
    rollouts = experience.rollouts
    for epoch in range(epochs):
        chosen = step_of_rows(rollouts, prompts, epoch, count, seed)
        for step in range(count):
            rows = (chosen == step).nonzero().flatten()
            # Skipped rows count here: the others must weigh what they would weigh with them.
            denominators = Denominators.count(experience.mask[rows], rollouts.group_ids[rows])
            fed = rows if rollouts.skipped is None else rows[~rollouts.skipped[rows]]
            parts = micro_batches(experience, fed, micro_batch_tokens, unit, feed)
            yield Minibatch(epoch, rows, denominators, parts)


def micro_batches(
    experience: Experience,
    rows: Tensor,
    max_tokens: int,
    unit: Unit = "row",
    feed: Feed = PADDED,
) -> tuple[MicroBatch, ...]:
    """Cut rows into micro-batches of similar lengths, as many on every rank.

    Args:
        experience: This rank's rows.
        rows: (n,) long, the rows to cut.
        max_tokens: Most tokens fed in one micro-batch; a single unit may exceed it.
        unit: What must stay together: nothing, the answers to a prompt, or all of the rows.
        feed: How rows are fed, and so what they cost.

    Returns:
        At least one; ranks with less work are padded with passes that contribute 0.
    """
    rollouts = experience.rollouts
    prompts = [len(rollouts.prompt(row).token_ids) for row in rows.tolist()]
    groups, lengths = rollouts.group_ids[rows].tolist(), rollouts.lengths()[rows].tolist()
    loads = [Load.of(*row) for row in zip(groups, prompts, lengths, strict=True)]
    parts: list[list[list[int]]] = []
    full: list[Load] = []
    for atom in _atoms(groups, loads, unit, feed, max_tokens):
        load = functools.reduce(Load.__add__, [loads[i] for i in atom])
        if parts and feed.tokens(full[-1] + load) <= max_tokens:
            parts[-1].append(atom)
            full[-1] += load
        else:
            parts.append([atom])
            full.append(load)
    wanted = max(1, distributed.max_over_ranks(len(parts), experience.mask.device))
    while len(parts) < wanted and any(len(part) > 1 for part in parts):
        largest = max(range(len(parts)), key=lambda k: len(parts[k]))
        part = parts[largest]
        parts[largest : largest + 1] = [part[: len(part) // 2], part[len(part) // 2 :]]
    flat = [torch.tensor([i for atom in part for i in atom], device=rows.device) for part in parts]
    real = [MicroBatch(rows[index]) for index in flat]
    filler = MicroBatch(torch.zeros(1, dtype=torch.long, device=rows.device), padding=True)
    return tuple(real + [filler] * (wanted - len(real)))


def _atoms(
    group_ids: list[int], loads: list[Load], unit: Unit, feed: Feed, max_tokens: int
) -> list[list[int]]:
    """Return what is not cut, each longest row first, longest of all first."""
    by_length = sorted(range(len(loads)), key=lambda i: -loads[i].longest)
    if unit == "minibatch":
        return [by_length] if by_length else []
    if unit == "row" and not feed.shares:
        return [[i] for i in by_length]
    groups: dict[int, list[int]] = {}
    for i in by_length:
        groups.setdefault(group_ids[i], []).append(i)
    if unit == "group":
        return list(groups.values())
    atoms: list[list[int]] = []
    for group in groups.values():
        load = functools.reduce(Load.__add__, [loads[i] for i in group])
        atoms += [group] if feed.tokens(load) <= max_tokens else [[i] for i in group]
    return atoms
