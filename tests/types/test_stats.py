"""LOG-02, LOG-03: means are sums over sums, whatever the windows."""

import pytest
import torch

from rlzoo.training.experience import Rewards, finish, reward_stats, rollout_stats
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams
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


def test_eos_04_lengths_are_those_that_were_sampled():
    """EOS-04: two answers of 4 tokens, one of them cut and kept out of the loss."""
    prompts = Prompts((Prompt((1,), "a"),), (0,))
    mask = torch.ones(2, 4, dtype=torch.bool)
    rollouts = Rollouts(
        prompts=prompts,
        params=SamplingParams(),
        group_ids=torch.zeros(2, dtype=torch.long),
        token_ids=torch.ones(2, 4, dtype=torch.long),
        mask=mask,
        terminated=torch.tensor([True, False]),
        log_probs=-torch.ones(2, 4),
        completions=("x", "y"),
    )
    means = finish(rollout_stats(rollouts).means())
    names = ("length", "length_min", "length_max", "truncated")
    assert [means[f"rollout/{name}"] for name in names] == [4, 4, 4, 0.5]


def test_rew_02_a_mean_is_over_what_was_scored():
    """REW-02: 0.5, nothing and 0.8 are 0.65 over two answers, and a third abstained."""
    rewards = Rewards(
        table=[[0.5], [None], [0.8]],
        totals=torch.tensor([0.5, 0.0, 0.8], dtype=torch.float64),
        valid=torch.tensor([True, False, True]),
    )
    stats = reward_stats(rewards, ["r"])
    assert stats.sums["reward/r"][1] == 2
    means = finish(stats.means())
    assert means["reward/r"] == means["reward/mean"] == pytest.approx(0.65)
    assert means["reward/std"] == pytest.approx(0.15)
    assert means["reward/abstained"] == pytest.approx(1 / 3)
