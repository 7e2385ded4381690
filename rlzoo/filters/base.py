"""The base of filters: a step between rewards and advantages that decides which answers train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rlzoo.advantages import Advantage
from rlzoo.configuration.recorded import Recorded
from rlzoo.types import Prompt, Prompts, Rewards, Rollouts, Stats

Draw = Callable[[Prompts, int], tuple[Rollouts, Rewards]]
"""Prompts and the number of the round, from 1, to answers and their rewards."""


@dataclass(frozen=True)
class Iteration:
    """What a filter may ask for besides the answers and their rewards.

    Attributes:
        estimator: The advantage estimator of the run, which knows what teaches it nothing.
        judge: Index of the reward that tells right from wrong.
        draw: Samples fresh prompts and asks the rewards; only where ``Filter.draws`` says so.
        fresh: Round and places in the batch to as many new prompts.
        keep_pace: Takes part in the passes of ranks that draw while this one does not.
        stats: Receives what there is to log.
    """

    estimator: Advantage
    judge: int
    draw: Draw
    fresh: Callable[[int, Sequence[int]], Sequence[Prompt]]
    keep_pace: Callable[[], None]
    stats: Stats


class Filter(Recorded, ABC):
    """Decides which answers of an iteration train: ``(rollouts, rewards) -> (rollouts, rewards)``.

    The number and the order of the rows stay as they are; a filter marks rows
    (`Rollouts.leave_out`, `Rollouts.skip`) or puts other answers in their place. Filters run in the
    order of ``model.filters``, those that draw first, on every rank, each on that rank's own rows.

    Example:
        A class of your own that trains on short answers only::

            class DropLong(Filter):
                def __init__(self, tokens: int) -> None:
                    self.tokens = tokens

                def __call__(self, rollouts, rewards, iteration):
                    return rollouts.leave_out(rollouts.lengths() > self.tokens), rewards

    Attributes:
        draws: Whether it samples answers of its own.
        skips: Whether it keeps rows out of the update's passes that its loss still counts.
    """

    draws: ClassVar[bool] = False
    skips: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self, rollouts: Rollouts, rewards: Rewards, iteration: Iteration
    ) -> tuple[Rollouts, Rewards]:
        """Return the answers that are to train, and their rewards.

        Args:
            rollouts: N answers of this rank.
            rewards: The rewards of these answers.
            iteration: What else there is to ask for.

        Returns:
            N answers and their rewards.
        """
