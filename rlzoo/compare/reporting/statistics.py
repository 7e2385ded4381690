"""Means, intervals and paired comparisons over seeds. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy import optimize, stats

ALPHA = 0.05
POWER = 0.8
RESAMPLES = 10_000
MOST_SIGN_FLIPS = 14
DIGITS = 12
SAME = 10.0**-DIGITS
"""Differences of accuracies below this are rounding errors."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval, e.g. ``Interval(0.90, 0.88, 0.92)``."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """How one variant differs from another on the seeds that both have.

    Attributes:
        n: Seeds in common.
        difference: Mean of first minus second.
        deviation: Standard deviation of the differences.
        single: 95 % t interval of this pair alone.
        simultaneous: The interval widened so that all pairs hold together with 95 %.
        p: Two-sided p of the paired t-test, this pair alone.
        p_sign_flip: Two-sided p of the exact sign-flip test, this pair alone.
        detectable: Smallest true difference shown with 80 % power by the simultaneous interval.
        verdict: ``higher``, ``lower``, ``none`` (no difference shown) or ``impossible``.
    """

    n: int
    difference: float | None = None
    deviation: float | None = None
    single: Interval | None = None
    simultaneous: Interval | None = None
    p: float | None = None
    p_sign_flip: float | None = None
    detectable: float | None = None
    verdict: str = "impossible"


@lru_cache(maxsize=256)
def t_bound(alpha: float, df: int) -> float:
    """Return the t with ``P(|T| >= t) = alpha``.

    Args:
        alpha: Probability left outside, between 0 and 1.
        df: Degrees of freedom, at least 1.

    Returns:
        The bound: 4.303 for 0.05 and 2.
    """
    return float(stats.t.isf(alpha / 2, df))


def t_interval(values: Sequence[float], alpha: float = ALPHA) -> Interval | None:
    """Return the t interval of a mean, ``mean +- t(alpha, n - 1) * deviation / sqrt(n)``.

    Args:
        values: One value per seed.
        alpha: Probability left outside.

    Returns:
        The interval, or None with fewer than two values.
    """
    n = len(values)
    if n < 2:
        return None
    # stats.t.interval would give NaN where all values are equal.
    center, half = fmean(values), t_bound(alpha, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(center, center - half, center + half)


def bootstrap_interval(
    values: Sequence[float], *, seed: int = 0, alpha: float = ALPHA, resamples: int = RESAMPLES
) -> Interval | None:
    """Return the percentile bootstrap interval of a mean.

    Seeds are drawn with replacement; the ends are quantiles ``alpha / 2`` and ``1 - alpha / 2`` of
    the means. It never leaves the range of the values, and so is too narrow with few seeds.

    Args:
        values: One value per seed.
        seed: Of the draws.
        alpha: Probability left outside.
        resamples: Number of draws.

    Returns:
        The interval, or None with fewer than two values.
    """
    if len(values) < 2:
        return None
    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        confidence_level=1 - alpha,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(fmean(values), float(found.low), float(found.high))


def t_power(effect: float, n: int, alpha: float = ALPHA) -> float:
    """Return the power of a paired t-test, ``P(|T| > t)`` of the noncentral t distribution.

    Args:
        effect: True mean difference in standard deviations of the differences.
        n: Pairs, at least 2.
        alpha: Level of the test.

    Returns:
        Probability that the interval of the difference leaves out 0.
    """
    df, shift, t = n - 1, effect * math.sqrt(n), t_bound(alpha, n - 1)
    # The left tail is the right one of the mirrored distribution: nct.cdf(-t) of scipy 1.17 is NaN
    # where the tail is tiny.
    return float(stats.nct.sf(t, df, shift) + stats.nct.sf(t, df, -shift))


@lru_cache(maxsize=64)
def detectable_effect(n: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the smallest effect that a paired t-test shows with this power.

    Args:
        n: Pairs, at least 2.
        alpha: Level of the test.
        power: Wanted probability.

    Returns:
        The effect in standard deviations of the differences.
    """
    high = 1.0
    while t_power(high, n, alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda effect: t_power(effect, n, alpha) - power, 0.0, high))


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the exact sign-flip test of a mean of 0.

    The share of all ``2^n`` ways to choose signs whose mean is at least as far from 0. It assumes
    only that differences are symmetric, and is never below ``2 / 2^n``.

    Args:
        differences: One per seed.

    Returns:
        p, or None with fewer than two differences or more than 14.
    """
    if not 2 <= len(differences) <= MOST_SIGN_FLIPS:
        return None

    def distance(values: Any, axis: int) -> Any:
        # Rounded: sums that are equal but for the order of addition count as equally far.
        return np.round(np.abs(np.sum(values, axis=axis)), DIGITS)

    found = stats.permutation_test(
        (differences,),
        distance,
        permutation_type="samples",  # of a single sample: all choices of signs
        n_resamples=2**MOST_SIGN_FLIPS,
        alternative="greater",
    )
    return float(found.pvalue)


def paired(
    first: Mapping[int, float], second: Mapping[int, float], comparisons: int = 1
) -> PairedDifference:
    """Compare two variants on the seeds that both have.

    The verdict is ``higher`` or ``lower`` only if the t interval at level ``0.05 / comparisons``
    (Bonferroni) leaves out 0. It is ``impossible`` with fewer than two common seeds, and where all
    differences are the same number other than 0, since then their spread is unknown.

    Args:
        first: Seed to value.
        second: Seed to value.
        comparisons: Pairs that are compared in all.

    Returns:
        Difference, intervals and verdict.
    """
    seeds = sorted(first.keys() & second.keys())
    values = [first[seed] - second[seed] for seed in seeds]
    n = len(values)
    if n < 2:
        return PairedDifference(n=n, difference=values[0] if values else None)
    alpha = ALPHA / comparisons
    center, spread = fmean(values), stdev(values)
    if spread <= SAME:
        verdict = "none" if abs(center) <= SAME else "impossible"
        return PairedDifference(n=n, difference=center, deviation=0.0, verdict=verdict)
    single, wide = t_interval(values), t_interval(values, alpha)
    assert single is not None
    assert wide is not None
    verdict = "higher" if wide.low > 0 else "lower" if wide.high < 0 else "none"
    return PairedDifference(
        n=n,
        difference=center,
        deviation=spread,
        single=single,
        simultaneous=wide,
        p=float(stats.ttest_1samp(values, 0.0).pvalue),
        p_sign_flip=sign_flip_p(values),
        detectable=detectable_effect(n, alpha) * spread,
        verdict=verdict,
    )
