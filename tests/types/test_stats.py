"""LOG-02, LOG-03: means are sums over sums, whatever the windows."""

import pytest
import torch

from rlzoo.types.stats import Stats


def test_log_02_a_loss_weighs_updates_and_not_micro_batches():
    """LOG-02: updates of 4 micro-batches (loss 1) and of 2 (loss 3) log 2.0, and not 10 / 6."""
    stats = Stats()
    for loss, micro_batches in ((1.0, 4), (3.0, 2)):
        for _ in range(micro_batches):  # each carries its share, and the update counts once
            stats.add("policy/loss", loss / micro_batches, 0)
        stats.add("policy/loss", 0.0, 1)
    assert stats.means() == {"policy/loss": 2.0}


def test_log_02_a_token_mean_weighs_tokens():
    """LOG-02: 4 values of mean 1 and 2 of mean 3 are (4 + 6) / 6, and not the mean of means 2."""
    stats = Stats()
    stats.add("x", 4.0, 4)
    stats.add_masked("x", torch.tensor([3.0, 3.0, float("nan")]), torch.tensor([True, True, False]))
    assert stats.means()["x"] == pytest.approx(10 / 6)


def test_log_02_merging_is_the_same_in_any_grouping():
    parts = []
    for total, weight, top in ((1.0, 4, 7.0), (6.0, 2, -1.0), (0.5, 1, 9.0)):
        part = Stats()
        part.add("mean", total, weight)
        part.maximum("max", top)
        parts.append(part)
    flat = Stats().merge(parts).means()
    nested = Stats().merge([parts[2], Stats().merge(parts[:2])]).means()
    assert flat == nested == {"mean": pytest.approx(7.5 / 7), "max": 9.0}


def test_a_mean_of_nothing_is_left_out():
    """0 / 0 would log NaN, and a 0 in its place would be a lie."""
    stats = Stats()
    stats.add("nothing", 0.0, 0)
    stats.add_masked("masked", torch.tensor([float("nan")]), torch.tensor([False]))
    assert stats.means() == {}


def test_sums_are_kept_in_double_precision_and_hold_no_graph():
    stats = Stats()
    for _ in range(10):
        stats.add("x", torch.tensor(0.1, requires_grad=True), 1)
    assert stats.means()["x"] == pytest.approx(float(torch.tensor(0.1)), abs=1e-15)
    assert not stats.sums["x"][0].requires_grad
    large = Stats()
    large.add("count", 2**24, 1)
    large.add("count", 1, 1)
    assert large.means()["count"] == (2**24 + 1) / 2
    numbers = Stats()
    numbers.add("count", 2**24 + 1, 0.1)
    assert numbers.means()["count"] == (2**24 + 1) / 0.1


def test_a_copy_does_not_follow_the_original():
    stats = Stats()
    stats.add("x", 1.0, 1)
    copy = stats.cpu()
    stats.add("x", 5.0, 1)
    assert copy.means() == {"x": 1.0}
    assert stats.means() == {"x": 3.0}


def test_the_largest_value_may_be_negative():
    stats = Stats()
    stats.maximum("top", -3.0)
    stats.maximum("top", torch.tensor(-5.0))
    assert stats.means() == {"top": -3.0}


def test_loss_19_metrics_refuse_broadcasting():
    """LOSS-19: two answers of weight 1 average to 1; (B, 1) * (B,) would have made it 2."""
    stats = Stats()
    stats.add_masked("weight", torch.ones(2), torch.tensor([True, True]))
    assert stats.means() == {"weight": 1.0}
    with pytest.raises(ValueError, match=r"weight is .* but its mask is"):
        stats.add_masked("weight", torch.ones(2, 1), torch.tensor([True, True]))
    with pytest.raises(ValueError, match="must be a scalar"):
        stats.add("weight", torch.ones(2), 1)
