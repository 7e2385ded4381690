"""Statistics over seeds: published tables, closed forms, simulations; and the wrong way as well."""

import math
from statistics import fmean, stdev

import numpy as np
import pytest

from rlzoo.compare.reporting.statistics import (
    bootstrap_interval,
    detectable_effect,
    paired,
    sign_flip_p,
    t_bound,
    t_interval,
    t_power,
)

# Two-sided 95 % and 99 % points, as printed in any table of Student's t.
TABLE = [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604)]
TABLE += [(7, 2.365, 3.499), (10, 2.228, 3.169), (29, 2.045, 2.756), (120, 1.980, 2.617)]


@pytest.mark.parametrize(("df", "wide", "wider"), TABLE)
def test_t_is_the_printed_table(df, wide, wider):
    assert t_bound(0.05, df) == pytest.approx(wide, abs=6e-4)
    assert t_bound(0.01, df) == pytest.approx(wider, abs=6e-4)


def test_t_has_closed_forms_for_one_and_two_degrees_of_freedom():
    for t in (0.1, 1.0, 5.0, 50.0):
        assert t_bound(1 - 2 / math.pi * math.atan(t), 1) == pytest.approx(t)
        assert t_bound(1 - t / math.sqrt(2 + t * t), 2) == pytest.approx(t)


def test_the_interval_by_hand():
    values = [0.90, 0.92, 0.94]  # deviation 0.02, divided by n - 1; by n it is 0.01633
    interval = t_interval(values)
    assert interval.mean == pytest.approx(0.92)
    assert interval.high - interval.mean == pytest.approx(4.30265 * 0.02 / math.sqrt(3), abs=1e-6)
    assert interval.mean - interval.low == pytest.approx(interval.high - interval.mean)
    assert t_interval([0.9] * 3) == type(interval)(0.9, 0.9, 0.9)
    assert t_interval([0.9]) is None
    assert bootstrap_interval([0.9]) is None


def coverage(interval, n, repeats, rng):
    hits = 0
    for values in rng.normal(size=(repeats, n)):
        found = interval(list(values))
        hits += found.low <= 0 <= found.high
    return hits / repeats


def test_the_t_interval_covers_as_promised_and_the_normal_one_does_not():
    rng = np.random.default_rng(0)
    assert coverage(t_interval, 3, 4000, rng) == pytest.approx(0.95, abs=0.012)

    def normal(values):
        half = 1.96 * stdev(values) / math.sqrt(len(values))
        return type(t_interval(values))(fmean(values), fmean(values) - half, fmean(values) + half)

    assert coverage(normal, 3, 4000, rng) < 0.85


def test_the_bootstrap_covers_with_many_seeds_and_is_too_narrow_with_three():
    rng = np.random.default_rng(1)

    def interval(values):
        return bootstrap_interval(values, resamples=400)

    assert coverage(interval, 40, 600, rng) == pytest.approx(0.94, abs=0.03)
    assert coverage(interval, 3, 600, rng) < 0.85


def test_the_bootstrap_of_two_values_is_their_range_and_its_seed_decides():
    # Means of two draws: low (1/4), middle (1/2), high (1/4), so the 2.5 % points are the values.
    found = bootstrap_interval([0.2, 0.6])
    assert (found.low, found.mean, found.high) == pytest.approx((0.2, 0.4, 0.6))
    values = list(np.random.default_rng(2).normal(size=9))
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_power_is_that_of_published_examples():
    # G*Power's manual: matched pairs, two-sided 0.05, d = 0.5, N = 34 and d = 0.8, N = 15.
    assert t_power(0.5, 34) == pytest.approx(0.8078, abs=5e-4)
    assert t_power(0.8, 15) == pytest.approx(0.8213, abs=5e-4)
    for n in (2, 3, 10):
        assert t_power(0.0, n) == pytest.approx(0.05, abs=1e-3)  # no effect: the level


def test_power_is_a_number_where_a_tail_is_tiny():
    """The left tail of scipy 1.17 is NaN there."""
    for effect in np.geomspace(0.1, 2000, 60):
        for n in (2, 3, 4, 10):
            for alpha in (0.05, 0.05 / 6, 0.05 / 45):
                assert alpha <= t_power(effect, n, alpha) + 1e-9 <= 1 + 2e-9
    shown = [[detectable_effect(n, alpha) for alpha in (0.05, 0.05 / 6)] for n in (2, 3, 5, 10)]
    printed = [[11.5, 69], [3.3, 8.0], [1.7, 2.8], [1.0, 1.4]]  # docs/compare.md
    for row, text in zip(shown, printed, strict=True):
        assert [float(f"{x:.2g}" if x >= 20 else f"{x:.1f}") for x in row] == text


def test_power_is_what_a_simulation_counts():
    rng = np.random.default_rng(5)
    effect = detectable_effect(3)
    values = rng.normal(loc=effect, size=(20_000, 3))
    t = values.mean(1) / values.std(1, ddof=1) * math.sqrt(3)
    assert np.mean(np.abs(t) > t_bound(0.05, 2)) == pytest.approx(0.8, abs=0.01)
    # A normal approximation promises far smaller differences than three seeds can show.
    approximate = (1.96 + 0.8416) / math.sqrt(3)
    assert effect > 1.8 * approximate


def test_more_seeds_show_smaller_differences_and_more_comparisons_larger_ones():
    assert detectable_effect(3) > detectable_effect(5) > detectable_effect(10)
    assert detectable_effect(3, alpha=0.05 / 6) > detectable_effect(3)


def test_sign_flips_by_counting():
    assert sign_flip_p([1.0, 2.0, 3.0]) == 2 / 8  # only all plus and all minus are as far
    assert sign_flip_p([1.0, 2.0, -3.0]) == 1.0  # sum 0: everything is as far
    assert sign_flip_p([1.0] * 6) == 2 / 64
    assert sign_flip_p([3.0, 1.0, -1.0, 1.0]) == 8 / 16  # sums of 6 (2 ways) and 4 (6 ways)
    assert sign_flip_p([0.4, 0.2, -0.2, -0.4]) == 1.0  # unrounded, two of the sums would be smaller
    assert sign_flip_p([1.0]) is None
    assert sign_flip_p([1.0] * 15) is None


def test_pairing_by_seed_shows_what_unpaired_seeds_hide():
    first = {0: 0.50, 1: 0.70, 2: 0.90}
    second = {2: 0.85, 1: 0.64, 0: 0.46}  # another order; seeds matter, not positions
    found = paired(first, second)
    assert found.difference == pytest.approx(0.05)
    assert found.deviation == pytest.approx(0.01)
    # t = 0.05 / 0.01 * sqrt(3) = 8.66; p = 1 - t / sqrt(2 + t^2)
    assert found.p == pytest.approx(1 - 8.660254 / math.sqrt(77), abs=1e-6)
    assert found.verdict == "higher"
    assert paired(second, first).verdict == "lower"
    wrong = paired(first, {0: second[2], 1: second[1], 2: second[0]})
    assert wrong.verdict == "none"


def test_a_verdict_does_not_survive_many_comparisons():
    first, second = {0: 0.50, 1: 0.70, 2: 0.90}, {0: 0.46, 1: 0.64, 2: 0.85}
    alone, among = paired(first, second), paired(first, second, comparisons=15)
    assert among.verdict == "none"
    assert among.single == alone.single
    assert among.simultaneous.low < 0 < alone.simultaneous.low
    assert among.detectable > alone.detectable


def test_verdict_and_interval_agree_and_level_holds():
    rng = np.random.default_rng(7)
    wrong = 0
    for values in rng.normal(size=(2000, 2, 3)):
        found = paired(dict(enumerate(values[0])), dict(enumerate(values[1])))
        outside = not found.simultaneous.low <= 0 <= found.simultaneous.high
        assert (found.verdict != "none") == outside == (found.p < 0.05)
        wrong += outside
    assert wrong / 2000 == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("first", "second", "verdict", "n"),
    [
        ({0: 0.9}, {0: 0.1}, "impossible", 1),
        ({0: 0.9, 1: 0.9}, {2: 0.1, 3: 0.1}, "impossible", 0),
        ({0: 0.9, 1: 0.8}, {0: 0.9, 1: 0.8}, "none", 2),  # the same on every seed
        ({0: 0.9, 1: 0.8}, {0: 0.8, 1: 0.7}, "impossible", 2),  # spread 0, not certainty
    ],
)
def test_where_nothing_can_be_said(first, second, verdict, n):
    found = paired(first, second)
    assert (found.verdict, found.n) == (verdict, n)
    assert found.single is None
