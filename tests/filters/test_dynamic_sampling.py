"""Dynamic sampling: silent groups give way to fresh prompts, a bounded number of times."""

from __future__ import annotations

import torch

from rlzoo.advantages import GroupNormalized
from rlzoo.filters import Iteration
from rlzoo.filters.dynamic_sampling import DynamicSampling, silent, substitute
from rlzoo.training.experience import Rewards
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams
from rlzoo.types.stats import Stats

G, T = 2, 3


def batch(outcomes, positions, tag):
    """Answers whose first token is their row and whose judge is the second reward."""
    n = len(outcomes)
    prompts = Prompts(
        tuple(Prompt((i + 1,), f"{tag}{p}") for i, p in enumerate(positions)), tuple(positions)
    )
    rollouts = Rollouts(
        prompts=prompts,
        params=SamplingParams(),
        group_ids=torch.tensor(positions).repeat_interleave(G),
        token_ids=torch.arange(n * T).view(n, T),
        mask=torch.ones(n, T, dtype=torch.bool),
        terminated=torch.ones(n, dtype=torch.bool),
        log_probs=torch.zeros(n, T),
        completions=tuple(f"{tag}{i}" for i in range(n)),
    )
    table = [[0.1 * i, outcome] for i, outcome in enumerate(outcomes)]
    scores = torch.tensor([sum(x or 0.0 for x in row) for row in table])
    return rollouts, Rewards(table, scores, torch.ones(n, dtype=torch.bool))


def test_groups_are_judged_by_the_outcome_and_not_by_the_shaped_sum():
    rollouts, rewards = batch([1, 1, 0, 0, 1, 0], [0, 1, 2], "a")
    assert silent(rollouts, rewards, judge=1) == [0, 1]
    assert silent(rollouts, rewards, judge=0) == []


def test_only_silent_places_are_replaced():
    rollouts, rewards = batch([1, 1, 1, 0, 0, 0], [0, 1, 2], "a")
    fresh, new = batch([0, 1, 1, 0], [0, 2], "b")
    merged, table = substitute(rollouts, rewards, [0, 2], fresh, new)
    assert [p.text for p in merged.prompts.rows] == ["b0", "a1", "b2"]
    assert merged.completions == ("b0", "b1", "a2", "a3", "b2", "b3")
    assert [row[1] for row in table.table] == [0, 1, 1, 0, 1, 0]
    assert merged.token_ids[:, 0].tolist() == [0, 3, 6, 9, 6, 9]
    assert merged.group_ids.tolist() == rollouts.group_ids.tolist()


def run(outcomes_by_round, max_rounds):
    """Count the rounds and what is left, with the outcomes that each round draws."""
    rollouts, rewards = batch([1, 1, 1, 0, 0, 0], [5, 6, 7], "a")
    asked, stats = [], Stats()

    def fresh(round_, positions):
        asked.append((round_, list(positions)))
        return [Prompt((9,), f"r{round_}p{p}") for p in positions]

    def draw(prompts, round_):
        made, new = batch(outcomes_by_round[round_ - 1], list(prompts.positions), "n")
        return Rollouts(**{**vars(made), "prompts": prompts}), new

    iteration = Iteration(
        estimator=GroupNormalized(),
        judge=1,
        draw=draw,
        fresh=fresh,
        keep_pace=lambda: None,
        stats=stats,
    )
    merged, _ = DynamicSampling(max_rounds)(rollouts, rewards, iteration)
    return merged, asked, stats.means()


def test_it_refills_until_every_group_is_informative():
    merged, asked, means = run([[0, 1, 1, 1], [1, 0]], max_rounds=5)
    assert asked == [(1, [5, 7]), (2, [7])]
    assert [p.text for p in merged.prompts.rows] == ["r1p5", "a6", "r2p7"]
    assert means["rollout/refill_rounds"] == 2
    assert means["rollout/refilled_groups"] == 1.0  # three groups replaced, of three
    assert means["rollout/silent_after_refill"] == 0
    assert means["tokens/discarded"] == 3 * G * T


def test_it_stops_at_the_bound():
    _, asked, means = run([[0, 0, 1, 1]] * 3, max_rounds=2)
    assert len(asked) == 2
    assert means["rollout/silent_after_refill"] == 2 / 3
