"""GDPO: rewards are normalized one by one before they are summed."""

import math

import pytest
import torch
from outcomes import TABLE, close, first, float64, outcome

from rlzoo.advantages import GDPO, GroupNormalized, Outcome

NAN = float("nan")


def test_gdpo_is_the_worked_one():
    table = TABLE["gdpo_trl"]
    components, ids = float64(table["rewards_per_component"]), torch.tensor(table["group_id"])
    valid = torch.ones(4, dtype=torch.bool)
    weights = float64(table["weights"])
    close(GDPO().of_components(components, weights, ids, valid), table["adv"])
    for k in range(2):  # each by itself is the normalized column, whitened
        alone = GDPO().of_components(components, torch.eye(2).double()[k], ids, valid)
        column = float64(table["normalised"])[:, k]
        close(alone, (column / (column.std() + 1e-4)).tolist())
    doubled = GDPO().of_components(components, float64([2.0, 1.0]), ids, valid)
    assert (doubled - float64(table["adv"])).abs().max() > 0.1


def test_gdpo_keeps_a_signal_that_the_sum_has_lost():
    """Weights (1, 2), rewards (2, 0), (0, 1), (1, .5): every sum is 2, and GDPO still ranks them."""
    components, weights = [[2.0, 0.0], [0.0, 1.0], [1.0, 0.5]], [1.0, 2.0]
    made = outcome([2.0] * 3, components=components, weights=weights)
    assert not GroupNormalized()(made).advantages.any()
    assert GroupNormalized().rows_with_signal(made)[1:] == (1, 1)
    assert first(GDPO(), made).sign().tolist() == [-1, 1, 0]
    signal, silent, total = GDPO().rows_with_signal(made)
    assert (signal.tolist(), silent, total) == ([True] * 3, 0, 1)


def test_gdpo_counts_neither_abstentions_nor_rewards_of_weight_zero():
    """The second reward abstains on row 2: rows 0, 1 are -+ .7071, row 2 gets the first's alone."""
    components = [[1.0, 0.0], [1.0, 1.0], [1.0, NAN]]
    values = first(GDPO(), outcome([1.0, 2.0, 1.0], components=components))
    side = 0.5 / (math.sqrt(0.5) + 1e-4)
    close(values, [-side / (side + 1e-4), side / (side + 1e-4), 0.0])
    weightless = outcome([1.0] * 3, components=components, weights=[1.0, 0.0])
    assert not GDPO()(weightless).advantages.any()
    assert GDPO().rows_with_signal(weightless)[1:] == (1, 1)
    with pytest.raises(ValueError, match="no components"):
        GDPO()(Outcome(**{**vars(weightless), "components": None}))
