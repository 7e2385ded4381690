"""Rules that recognize a run that falls apart; each is a function of the metrics so far."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, median
from typing import ClassVar, Literal

from rlzoo.errors import UserError

History = Sequence[Mapping[str, float]]
"""Metrics of every iteration so far, the last one last; a metric not measured is not there."""


class CollapseRule(ABC):
    """Looks at the metrics up to an iteration and says whether something is wrong with it.

    A rule keeps nothing between calls: the same history gives the same answer. It is silent where
    the last iteration did not measure what it looks at.

    Attributes:
        watches: Names of the metrics it reads; the history holds no others.
    """

    watches: ClassVar[tuple[str, ...]]

    @abstractmethod
    def check(self, history: History) -> str | None:
        """Judge the last iteration.

        Args:
            history: Every iteration, at least one.

        Returns:
            What is wrong, with the numbers; None if nothing is.
        """


class RewardDrop(CollapseRule):
    """Fires while the smoothed reward is far below its best.

    The smoothed reward is the mean of ``reward/mean`` over the last ``window`` iterations. It has
    to fall by ``absolute`` and by ``relative`` times the size of its best.

    Args:
        absolute: Least fall, in reward.
        relative: Least fall, as a share of the best; 0 leaves the absolute bound alone.
        window: Iterations that are averaged.
    """

    watches: ClassVar[tuple[str, ...]] = ("reward/mean",)

    def __init__(self, absolute: float = 0.1, relative: float = 0.5, window: int = 10) -> None:
        _positive(self, absolute=absolute, window=window)
        if not relative >= 0:
            raise UserError(f"RewardDrop: relative must be >= 0, got {relative}")
        self.absolute, self.relative, self.window = absolute, relative, window

    def check(self, history: History) -> str | None:
        """Compare the last window with the best one."""
        values = _series(history, "reward/mean")
        if len(values) < self.window or not _last(history, "reward/mean"):
            return None
        sums = [0.0, *accumulate(values)]
        means = [
            (high - low) / self.window for low, high in zip(sums, sums[self.window :], strict=False)
        ]
        best, now = max(means), means[-1]
        bound = max(self.absolute, self.relative * abs(best))
        if best - now < bound:
            return None
        return (
            f"reward/mean over {self.window} iterations fell from {best:.3g} to {now:.3g}, by "
            f"{best - now:.3g} (bound {bound:.3g})"
        )


class EntropyRange(CollapseRule):
    """Fires while the entropy is a small share, or a large multiple, of what it was at the start.

    The entropy is ``policy/entropy`` where a run measures it, else ``-policy/log_prob``. The start
    is the mean of the first ``window`` iterations.

    Args:
        floor: Smallest share of the start; 0 is off.
        ceiling: Largest multiple of the start; .inf is off.
        rise: Least rise over the start, in nats, for the ceiling to count, so that a policy that
            starts out certain may explore.
        window: Iterations that make the start, and that are averaged now.
    """

    watches: ClassVar[tuple[str, ...]] = ("policy/entropy", "policy/log_prob")

    def __init__(
        self, floor: float = 0.01, ceiling: float = 4.0, rise: float = 1.0, window: int = 5
    ) -> None:
        if not 0 <= floor < 1:
            raise UserError(f"EntropyRange: floor must be in [0, 1), got {floor}")
        if not ceiling > 1:
            raise UserError(f"EntropyRange: ceiling must be > 1 (.inf is off), got {ceiling}")
        if not rise >= 0:
            raise UserError(f"EntropyRange: rise must be >= 0, got {rise}")
        _positive(self, window=window)
        self.floor, self.ceiling, self.rise, self.window = floor, ceiling, rise, window

    def check(self, history: History) -> str | None:
        """Compare the last window with the first."""
        name = "policy/entropy" if "policy/entropy" in history[-1] else "policy/log_prob"
        values = _series(history, name)
        if len(values) < 2 * self.window or not _last(history, name):
            return None
        sign, shown = (1, name) if name == "policy/entropy" else (-1, f"-{name}")
        start, now = (
            sign * fmean(part) for part in (values[: self.window], values[-self.window :])
        )
        low, high = self.floor * start, max(self.ceiling * start, start + self.rise)
        if now < low:
            return f"{shown} fell from {start:.3g} to {now:.3g} nats (floor {low:.3g})"
        if now > high:
            return f"{shown} rose from {start:.3g} to {now:.3g} nats (ceiling {high:.3g})"
        return None


class KLAbove(CollapseRule):
    """Fires while the KL is above a bound.

    Args:
        to: ``reference`` looks at ``policy/kl_ref``, the drift of the whole run; ``old`` at
            ``policy/kl_old``, the step of one iteration, which is 0 with one update per iteration.
        limit: Bound, in nats per token.
    """

    watches: ClassVar[tuple[str, ...]] = ("policy/kl_ref", "policy/kl_old")

    def __init__(self, to: Literal["reference", "old"], limit: float) -> None:
        _positive(self, limit=limit)
        self.to, self.limit = to, limit
        self._name = "policy/kl_ref" if to == "reference" else "policy/kl_old"

    def check(self, history: History) -> str | None:
        """Compare the last value with the bound."""
        value = history[-1].get(self._name)
        if value is None or not value > self.limit:
            return None
        return f"{self._name} is {value:.3g} nats per token (bound {self.limit:.3g})"


class GradNormSpike(CollapseRule):
    """Fires while the gradient norm is a large multiple of its median over the iterations before.

    Args:
        factor: Largest multiple of the median.
        window: Iterations of the median; it takes half of them to judge at all.
    """

    watches: ClassVar[tuple[str, ...]] = ("optim/grad_norm",)

    def __init__(self, factor: float = 100.0, window: int = 50) -> None:
        if not factor > 1:
            raise UserError(f"GradNormSpike: factor must be > 1, got {factor}")
        if window < 2:
            raise UserError(f"GradNormSpike: window must be >= 2, got {window}")
        self.factor, self.window = factor, window

    def check(self, history: History) -> str | None:
        """Compare the last norm with the median; iterations without a gradient do not count."""
        value = history[-1].get("optim/grad_norm")
        before = [x for x in _series(history[:-1], "optim/grad_norm") if x > 0][-self.window :]
        if value is None or len(before) < self.window // 2:
            return None
        middle = median(before)
        if not value > self.factor * middle:
            return None
        return (
            f"optim/grad_norm is {value:.3g}, {value / middle:.3g} times its median {middle:.3g} "
            f"over {len(before)} iterations (bound {self.factor:.3g})"
        )


class NonFinite(CollapseRule):
    """Fires where a loss, log-probability, reward or norm is not finite, or updates are skipped.

    Args:
        skipped: Share of updates, over the last ``window`` iterations, that may be skipped because
            their gradient was not finite.
        window: Iterations of that share; fewer are enough at the start.
    """

    watches: ClassVar[tuple[str, ...]] = (
        "optim/skipped",
        "policy/loss",
        "policy/log_prob",
        "reward/mean",
        "optim/grad_norm",
    )

    def __init__(self, skipped: float = 0.5, window: int = 1) -> None:
        if not 0 <= skipped < 1:
            raise UserError(f"NonFinite: skipped must be in [0, 1), got {skipped}")
        _positive(self, window=window)
        self.skipped, self.window = skipped, window

    def check(self, history: History) -> str | None:
        """Look at the last values, then at the share of skipped updates."""
        for name in self.watches:
            value = history[-1].get(name, 0.0)
            if not math.isfinite(value):
                return f"{name} is {value}"
        if "optim/skipped" not in history[-1]:
            return None
        share = fmean(_series(history[-self.window :], "optim/skipped"))
        if not share > self.skipped:
            return None
        return (
            f"optim/skipped is {share:.3g} over {self.window} iterations (bound {self.skipped:.3g})"
        )


def default_rules() -> list[CollapseRule]:
    """Return rules that a healthy run does not meet.

    A run that has solved its task ends with an entropy near 0, so there is no floor among them.
    """
    return [
        RewardDrop(),
        EntropyRange(floor=0.0),
        KLAbove("reference", 10.0),
        KLAbove("old", 1.0),
        GradNormSpike(),
        NonFinite(),
    ]


def _series(history: History, name: str) -> list[float]:
    return [row[name] for row in history if name in row and math.isfinite(row[name])]


def _last(history: History, name: str) -> bool:
    return math.isfinite(history[-1].get(name, math.nan))


def _positive(rule: CollapseRule, **settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise UserError(f"{type(rule).__name__}: {name} must be > 0, got {value}")
