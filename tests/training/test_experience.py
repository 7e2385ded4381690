"""Between rollouts and an update: rewards by row, passes before it, batches, what is logged."""

import math

import pytest
import torch

from rlzoo.objective import KLPenalty
from rlzoo.training.experience import (
    Rewards,
    finish,
    over_micro_batches,
    policy_batch,
    reward_stats,
    rollout_stats,
    samples_of,
)
from rlzoo.types import Experience, LogProbs, Prompt, Prompts, Rollouts, SamplingParams


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


def rollouts(lengths=(3, 1, 4, 2)):
    """Two prompts of different length with two answers each; token ids name their place."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    prompts = Prompts(
        (
            Prompt((7, 8), "long", target="x", columns={"level": 1}),
            Prompt((9,), "short", target="y", columns={"level": 2}),
        ),
        (0, 1),
    )
    return Rollouts(
        prompts=prompts,
        params=SamplingParams(),
        group_ids=torch.tensor([0, 0, 1, 1]),
        token_ids=torch.arange(10, 10 + mask.numel()).view(mask.shape),
        mask=mask,
        terminated=torch.tensor([True, True, False, True]),
        log_probs=-torch.arange(1.0, 1 + mask.numel()).view(mask.shape),
        completions=("a", "b", "c", "d"),
    )


def experience(**fields):
    made = rollouts()
    blank = torch.zeros(made.mask.shape)
    return Experience(made, made.mask, **{"advantages": blank, "old_log_probs": blank, **fields})


def test_a_reward_sees_a_row_with_its_own_prompt_and_length():
    made = rollouts()
    for given in (made, made.leave_out(torch.tensor([True] * 4))):  # whatever the loss leaves out
        rows = [(s.row, s.prompt, s.target, s.completion) for s in samples_of(given)]
        assert rows == [
            (0, "long", "x", "a"),
            (1, "long", "x", "b"),
            (2, "short", "y", "c"),
            (3, "short", "y", "d"),
        ]
        assert [s.num_tokens for s in samples_of(given)] == [3, 1, 4, 2]
        assert [s.terminated for s in samples_of(given)] == [True, True, False, True]
        assert [s.columns["level"] for s in samples_of(given)] == [1, 1, 2, 2]


@pytest.mark.parametrize("budget", [1, 8, 10**6])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3, 0], []])
def test_a_pass_fills_the_rows_that_were_asked_for_and_no_other(rows, budget):
    """However the rows are cut, and where there are none a padding pass fills nothing."""
    made, calls = experience(), []

    def tokens(sequences):
        calls.append(torch.is_grad_enabled())
        start, width = sequences.prompt_lengths, sequences.mask.shape[1]
        places = start[:, None] + torch.arange(width)
        padded = torch.nn.functional.pad(sequences.input_ids, (0, width))
        return {"ids": padded.gather(1, places).float() * sequences.mask}

    found = over_micro_batches(tokens, made, torch.tensor(rows).long(), budget)["ids"]
    expected = torch.zeros(4, 4)
    for row in rows:
        expected[row] = made.rollouts.token_ids[row] * made.mask[row]
    assert torch.equal(found, expected)
    assert calls == [False] * (max(1, len(rows)) if budget == 1 else len(calls))
    assert calls


def test_a_batch_is_cut_to_its_rows_and_width_and_a_paid_penalty_leaves_no_reference():
    ref = torch.arange(16.0).view(4, 4)
    made = experience(ref_log_probs=ref, advantages=ref + 1, old_log_probs=ref + 2)
    rows = torch.tensor([3, 2])
    mask = made.mask[rows, :2]
    predicted = LogProbs(torch.zeros(2, 2))
    batch = policy_batch(made, rows, predicted, mask, KLPenalty(0.1))
    assert batch.ref_log_probs.tolist() == [[12, 13], [8, 9]]
    assert batch.advantages.tolist() == [[13, 14], [9, 10]]
    assert batch.old_log_probs.tolist() == [[14, 15], [10, 11]]
    assert batch.rollout_log_probs.tolist() == [[-13, -14], [-9, -10]]
    assert batch.token_ids.tolist() == [[22, 23], [18, 19]]
    assert batch.group_ids.tolist() == [1, 1]
    paid = policy_batch(made, rows, predicted, mask, KLPenalty(0.1, "k1", placement="reward"))
    assert paid.ref_log_probs is None


def test_what_no_part_of_an_iteration_took_is_left_over():
    """10 s, of which 6 are named; 50 tokens in 4 s of sampling."""
    means = {
        "time/iteration_s": 10.0,
        "time/rollout_s": 4.0,
        "time/training_s": 2.0,
        "tokens/iteration": 50.0,
    }
    means = finish(means)
    assert means["time/other_s"] == 4.0
    assert means["tokens/sampled_per_s"] == 12.5
    assert math.isnan(means["reward/mean"])  # and not the figure of the iteration before
