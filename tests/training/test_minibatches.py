"""Epochs, minibatches, micro-batches in one process; those over two ranks are in distributed."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rlzoo.algorithms import PPO
from rlzoo.errors import UserError
from rlzoo.models.feeding.feeds import SharedFeed
from rlzoo.objective.loss import policy_loss
from rlzoo.training.minibatches import check_divisible, micro_batches, minibatches, order
from rlzoo.types import Experience, PolicyBatch, Prompt, Prompts, Rollouts, SamplingParams
from rlzoo.types.stats import Stats


def experience(prompt_lengths, lengths, group=1, positions=None):
    """Rollouts of given prompt and response lengths; contents do not matter here."""
    prompts = Prompts(
        rows=tuple(Prompt(token_ids=(1,) * n, text="") for n in prompt_lengths),
        positions=tuple(positions or range(len(prompt_lengths))),
    )
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    rollouts = Rollouts(
        prompts=prompts,
        params=SamplingParams(),
        group_ids=torch.tensor(prompts.positions).repeat_interleave(group),
        token_ids=torch.full(mask.shape, 2),
        mask=mask,
        terminated=torch.ones(len(lengths), dtype=torch.bool),
        log_probs=torch.zeros(mask.shape),
        completions=("",) * len(lengths),
    )
    return Experience(rollouts, mask, torch.ones(mask.shape), torch.zeros(mask.shape))


def cut(made, prompts, **settings):
    options = {"epochs": 1, "count": 1, "micro_batch_tokens": 10**6, "seed": 3, **settings}
    return list(minibatches(made, prompts=prompts, **options))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("epochs", [1, 3])
def test_bat_01_every_row_once_per_epoch(epochs, count):
    """BAT-01: epochs * count steps; each epoch is a partition; whole groups when count divides P."""
    made = experience([2] * 6, [1, 4, 2, 3, 4, 1, 2, 2, 3, 4, 1, 1], group=2)
    steps = cut(made, 6, epochs=epochs, count=count)
    assert len(steps) == epochs * count
    assert [step.epoch for step in steps] == [e for e in range(epochs) for _ in range(count)]
    for epoch in range(epochs):
        mine = [step for step in steps if step.epoch == epoch]
        assert sorted(torch.cat([step.rows for step in mine]).tolist()) == list(range(12))
        for step in mine:
            assert len(step.rows) == 12 // count
            assert step.denominators.tokens == int(made.mask[step.rows].sum())
            assert step.denominators.sequences == len(step.rows)
            inside = torch.cat([micro.rows for micro in step.micro_batches])
            assert sorted(inside.tolist()) == sorted(step.rows.tolist())
            if 6 % count == 0:
                ids = made.rollouts.group_ids[step.rows]
                assert ids.bincount().tolist().count(2) * 2 == len(step.rows)
                assert step.denominators.groups * 2 == len(step.rows)


def test_bat_01_epochs_are_shuffled_by_seed_and_the_first_is_not():
    made = experience([2] * 8, [3] * 8)
    rows = [step.rows.tolist() for step in cut(made, 8, epochs=3, count=4)]
    assert rows[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert rows[4:8] != rows[:4]
    assert rows[8:] != rows[4:8]
    assert rows == [step.rows.tolist() for step in cut(made, 8, epochs=3, count=4)]
    assert rows != [step.rows.tolist() for step in cut(made, 8, epochs=3, count=4, seed=4)]
    assert order(8, 0, seed=4).tolist() == list(range(8))
    assert len({tuple(order(8, epoch, seed).tolist()) for epoch in (1, 2) for seed in (1, 2)}) == 4


def test_bat_01_the_second_update_is_off_policy_and_the_first_is_not():
    """BAT-01: ratio 1 and clip fraction 0 in the first step by construction, moved in the second."""
    made = experience([2] * 2, [2, 3, 1, 2], group=2)
    old = torch.full(made.mask.shape, -1.0)
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]]).expand(made.mask.shape)
    theta = torch.zeros(made.mask.shape, requires_grad=True)
    moved = []
    for step in cut(made, 2, epochs=2, count=1, micro_batch_tokens=8):
        assert len(step.micro_batches) > 1
        stats = Stats()
        for micro in step.micro_batches:
            rows = micro.rows
            batch = PolicyBatch(
                old[rows] + theta[rows], old[rows], advantages[rows], made.mask[rows]
            )
            loss, found = policy_loss(PPO(), batch, step.denominators)
            loss.backward()
            stats.merge([found])
        moved.append(stats.means())
        with torch.no_grad():
            theta -= 2 * theta.grad
            theta.grad = None
    assert moved[0]["policy/ratio_mean"] == moved[0]["policy/ratio_max"] == 1
    assert moved[0]["policy/clip_fraction"] == 0
    # A step of 2 moves each of the 8 tokens by 2 A / 8: r = e^.25, e^-.25, e^.125, e^-.5, and all
    # but the one token of row 2 leave [0.8, 1.2] in the direction of their advantage.
    assert moved[1]["policy/log_ratio_abs_max"] == pytest.approx(0.5)
    assert moved[1]["policy/clip_fraction"] == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((6, 2, 5, 1), "minibatches 5 does not divide .* = 6 \\* 2 = 12; use 4 or 6"),
        ((4, 2, 16, 1), "minibatches 16 does not divide .* = 4 \\* 2 = 8; use 4 or 8"),
        ((4, 2, 0, 1), "minibatches 0 does not divide .* = 4 \\* 2 = 8; use 1 or 2"),
        ((6, 2, 4, 4), "prompts_per_iteration 6 does not divide over 4 processes; use 4 or 8"),
        ((1, 2, 1, 2), "prompts_per_iteration 1 does not divide over 2 processes; use 2 or 4"),
    ],
)
def test_bat_02_the_message_states_the_rule_and_two_sizes_that_fit(sizes, message):
    """BAT-02: and the two sizes do fit."""
    with pytest.raises(UserError, match=message):
        check_divisible(*sizes)
    prompts, group, _, world = sizes
    for fix in [int(word) for word in message.split("use ")[1].split(" or ")]:
        if "processes" in message:
            check_divisible(fix, group, 1, world)
        else:
            check_divisible(prompts, group, fix, world)


def test_bat_02_sizes_that_fit_pass():
    for sizes in [(6, 2, 4, 2), (1, 1, 1, 1), (8, 4, 32, 8)]:
        check_divisible(*sizes)


def test_bat_03_a_short_batch_counts_the_rows_that_are_there():
    """BAT-03: 3 prompts of 4 answers in 3 steps: denominators 4 rows each, no reshape error."""
    steps = cut(experience([2] * 3, [1, 2, 3, 4] * 3, group=4), 3, count=3)
    assert [step.denominators.tokens for step in steps] == [10, 10, 10]
    assert [step.denominators.groups for step in steps] == [1, 1, 1]


def test_abstaining_rows_leave_the_denominators():
    made = experience([2] * 2, [1, 2, 3, 4], group=2)
    mask = made.mask.clone()
    mask[1] = False
    made = Experience(made.rollouts, mask, made.advantages, made.old_log_probs)
    (step,) = cut(made, 2)
    counts = step.denominators
    assert (counts.tokens, counts.sequences, counts.groups) == (8, 3, 2)
    assert counts.group_tokens.tolist() == [1, 7]


def skipping(made, rows):
    return replace(made, rollouts=made.rollouts.skip(torch.tensor(rows)))


def test_rows_left_out_of_the_forward_pass_still_count():
    """KL-07, skipped rows: fewer are fed, and the divisor is that of all."""
    made = experience([2] * 2, [1, 2, 3, 4], group=2)
    (step,) = cut(skipping(made, [False, True, True, False]), 2)
    assert sorted(torch.cat([m.rows for m in step.micro_batches]).tolist()) == [0, 3]
    assert step.denominators.tokens == 10
    assert step.denominators.sequences == 4
    (step,) = cut(skipping(made, [True] * 4), 2)
    (micro,) = step.micro_batches
    assert micro.padding  # nothing to feed, and still one pass, so that ranks stay in step


PROMPTS = (1, 9, 2, 30, 4, 7, 3, 12, 5, 6, 2, 2)
RESPONSES = (30, 3, 11, 1, 26, 2, 8, 40, 5, 17, 0, 2)


@pytest.mark.parametrize("budget", [1, 40, 64, 100, 200, 10**6])
def test_the_token_budget_holds_for_the_tensor_that_is_fed(budget):
    """What is fed is the longest row, prompt and response, times the rows."""
    made = experience(PROMPTS, RESPONSES)
    parts = micro_batches(made, torch.arange(12), budget)
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(12))
    assert not any(part.padding for part in parts)
    for part in parts:
        fed = made.rollouts.sequences(part.rows).input_ids.numel()
        assert fed <= budget or len(part.rows) == 1
    if budget == 10**6:
        assert len(parts) == 1


@pytest.mark.parametrize("budget", [64, 100, 200])
def test_micro_batches_are_balanced(budget):
    """Rows of like length go together, and fewer tokens are fed than in the order of arrival."""
    made = experience(PROMPTS, RESPONSES)
    total = torch.tensor(PROMPTS) + torch.tensor(RESPONSES)
    parts = micro_batches(made, torch.arange(12), budget)
    for before, after in pairwise(parts):
        assert total[before.rows].min() >= total[after.rows].max()
    rows = math.ceil(12 / len(parts))
    naive = torch.arange(12).split(rows)

    def fed(groups):
        return sum(made.rollouts.sequences(group).input_ids.numel() for group in groups)

    assert fed([part.rows for part in parts]) < 0.9 * fed(naive)


@pytest.mark.parametrize("budget", [1, 12, 20, 30, 10**6])
def test_where_prompts_are_shared_groups_stay_together(budget):
    """The budget holds for what is fed: each prompt of a micro-batch once, and no padding."""
    made = experience([5, 3, 5, 3], [1, 4, 2, 3, 4, 1, 2, 2, 3, 4, 1, 1], group=3)
    parts = micro_batches(made, torch.arange(12), budget, feed=SharedFeed(8))
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(12))
    sizes = []
    for part in parts:
        groups = set((part.rows // 3).tolist())
        answers = int(made.rollouts.lengths()[part.rows].sum())
        sizes.append(answers + sum([5, 3, 5, 3][group] for group in groups))
        assert sizes[-1] <= budget or len(part.rows) == 1
    homes = [set((part.rows // 3).tolist()) for part in parts]
    assert len(parts) == {1: 12, 12: 4, 20: 3, 30: 2, 10**6: 1}[budget]
    assert sum(len(home) for home in homes) == (4 if budget > 1 else 12)


def test_rows_are_those_asked_for():
    made = experience(PROMPTS, RESPONSES)
    asked = torch.tensor([7, 2, 11, 4])
    parts = micro_batches(made, asked, 64)
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == [2, 4, 7, 11]


@pytest.mark.parametrize("budget", [1, 20, 50, 10**6])
def test_a_unit_is_never_cut(budget):
    """An objective that couples the answers to a prompt gets them in one micro-batch."""
    made = experience([2] * 4, [1, 4, 2, 3, 4, 1, 2, 2, 3, 4, 1, 1], group=3)
    every = torch.arange(12)
    parts = micro_batches(made, every, budget, "group")
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(12))
    homes = [set((part.rows // 3).tolist()) for part in parts]
    assert sum(len(home) for home in homes) == 4
    assert len(parts) == {1: 4, 20: 4, 50: 2, 10**6: 1}[budget]
    (whole,) = micro_batches(made, every, budget, "minibatch")
    assert sorted(whole.rows.tolist()) == list(range(12))
