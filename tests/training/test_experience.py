"""What is logged of rollouts and rewards, and how long its parts took."""

import pytest
import torch

from rlzoo.training.experience import Rewards, finish, reward_stats, rollout_stats
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams


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
