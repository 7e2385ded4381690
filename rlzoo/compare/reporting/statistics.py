"""Means, intervals and paired comparisons over seeds. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

ALPHA = 0.05
POWER = 0.8
RESAMPLES = 10_000
MOST_SIGN_FLIPS = 14
SAME = 1e-12


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval, e.g. ``Interval(0.90, 0.88, 0.92)``."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
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


def mean(values: Sequence[float]) -> float:
    """Return the mean, ``sum(x) / n``."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, ``sqrt(sum((x - mean)^2) / (n - 1))``."""
    centre = mean(values)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1))


def t_inside(t: float, df: int) -> float:
    """Return ``P(|T| < t)`` of Student's t with whole degrees of freedom, in closed form.

    With ``theta = atan(t / sqrt(df))`` and ``c = cos(theta)^2``: for even ``df``
    ``sin(theta) (1 + 1/2 c + 1*3/(2*4) c^2 + ...)``, for odd ``df``
    ``2/pi (theta + sin(theta) cos(theta) (1 + 2/3 c + 2*4/(3*5) c^2 + ...))``.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.

    Args:
        t: Bound, not negative.
        df: Degrees of freedom, at least 1.

    Returns:
        The probability.
    """
    theta = math.atan(t / math.sqrt(df))
    square = math.cos(theta) ** 2
    odd = df % 2
    term, total = 1.0, 0.0
    for k in range((df - odd) // 2):
        total += term
        term *= square * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * math.cos(theta) * total)
    return math.sin(theta) * total


@lru_cache(maxsize=256)
def t_bound(alpha: float, df: int) -> float:
    """Return the t with ``P(|T| >= t) = alpha``, by bisection.

    Args:
        alpha: Probability left outside, between 0 and 1.
        df: Degrees of freedom, at least 1.

    Returns:
        The bound: 4.303 for 0.05 and 2.
    """
    low, high = 0.0, 1.0
    while 1 - t_inside(high, df) > alpha:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - t_inside(middle, df) > alpha else (low, middle)
    return (low + high) / 2


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
    centre, half = mean(values), t_bound(alpha, n - 1) * deviation(values) / math.sqrt(n)
    return Interval(centre, centre - half, centre + half)


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
    data = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(data), size=(resamples, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), [alpha / 2, 1 - alpha / 2])
    return Interval(mean(values), float(low), float(high))


def t_power(effect: float, n: int, alpha: float = ALPHA) -> float:
    """Return the power of a paired t-test, from the noncentral t distribution.

    ``P(|Z + effect sqrt(n)| > t S)`` with ``S^2 = chi2(n - 1) / (n - 1)``, integrated over S.

    Args:
        effect: True mean difference in standard deviations of the differences.
        n: Pairs, at least 2.
        alpha: Level of the test.

    Returns:
        Probability that the interval of the difference leaves out 0.
    """
    df, shift, t = n - 1, effect * math.sqrt(n), t_bound(alpha, n - 1)
    width = 9 / math.sqrt(2 * df)
    start = max(0.0, 1 - width)
    step = (1 + width - start) / 2000
    s = start + step * (np.arange(2000) + 0.5)
    constant = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    weight = np.exp(constant + (df - 1) * np.log(s) - df * s**2 / 2) * step
    root = math.sqrt(2)
    beyond = [
        (math.erfc((t * x - shift) / root) + math.erfc((t * x + shift) / root)) / 2 for x in s
    ]
    return float(np.dot(weight, beyond))


@lru_cache(maxsize=64)
def detectable_effect(n: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the smallest effect that a paired t-test shows with this power, by bisection.

    Args:
        n: Pairs, at least 2.
        alpha: Level of the test.
        power: Wanted probability.

    Returns:
        The effect in standard deviations of the differences.
    """
    low, high = 0.0, 1.0
    while t_power(high, n, alpha) < power:
        low, high = high, high * 2
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_power(middle, n, alpha) < power else (low, middle)
    return (low + high) / 2


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the exact sign-flip test of a mean of 0.

    The share of all ``2^n`` ways to choose signs whose mean is at least as far from 0. It assumes
    only that differences are symmetric, and is never below ``2 / 2^n``.

    Args:
        differences: One per seed.

    Returns:
        p, or None with fewer than two differences or more than 14.
    """
    n = len(differences)
    if not 2 <= n <= MOST_SIGN_FLIPS:
        return None
    signs = np.array(list(product((1.0, -1.0), repeat=n)))
    sums = np.abs(signs @ np.asarray(differences, dtype=np.float64))
    return float(np.mean(sums >= sums[0] * (1 - 1e-9) - SAME))


def paired(first: Mapping[int, float], second: Mapping[int, float], comparisons: int = 1) -> Paired:
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
        return Paired(n=n, difference=values[0] if values else None)
    alpha = ALPHA / comparisons
    centre, spread = mean(values), deviation(values)
    if spread <= SAME:
        verdict = "none" if abs(centre) <= SAME else "impossible"
        return Paired(n=n, difference=centre, deviation=0.0, verdict=verdict)
    single, wide = t_interval(values), t_interval(values, alpha)
    assert single is not None
    assert wide is not None
    verdict = "higher" if wide.low > 0 else "lower" if wide.high < 0 else "none"
    return Paired(
        n=n,
        difference=centre,
        deviation=spread,
        single=single,
        simultaneous=wide,
        p=1 - t_inside(abs(centre) / spread * math.sqrt(n), n - 1),
        p_sign_flip=sign_flip_p(values),
        detectable=detectable_effect(n, alpha) * spread,
        verdict=verdict,
    )
