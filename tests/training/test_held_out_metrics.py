"""avg@k and pass@k against closed forms, merged over ranks as sums."""

from itertools import combinations
from math import comb

import pytest
import torch

from rlzoo.training.held_out_metrics import AverageAtK, PassAtK


def rows(*counts, n):
    return torch.tensor([[i < c for i in range(n)] for c in counts])


def test_average_is_over_prompts():
    metric = AverageAtK()
    metric.update(rows(0, 1, 4, n=4))
    metric.update(rows(2, n=4))
    assert metric.compute().item() == pytest.approx((0 + 1 / 4 + 1 + 1 / 2) / 4)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(k, right):
    metric, n = PassAtK(k), 5
    metric.update(rows(right, n=n))
    answers = [i < right for i in range(n)]
    draws = [any(draw) for draw in combinations(answers, k)]
    assert metric.compute().item() == pytest.approx(sum(draws) / comb(n, k))


def test_pass_at_1_is_the_average_and_pass_at_n_is_any():
    correct = rows(0, 1, 3, 4, n=4)
    one, all_, average = PassAtK(1), PassAtK(4), AverageAtK()
    for metric in (one, all_, average):
        metric.update(correct)
    assert one.compute() == average.compute() == 0.5
    assert all_.compute() == 0.75


@pytest.mark.parametrize("make", [AverageAtK, lambda: PassAtK(2)])
def test_two_ranks_are_one_weighted_by_prompts(make):
    """Three prompts on one rank and one on the other: a mean of means would be another number."""
    whole, parts = make(), [make(), make()]
    shares = [rows(4, 4, 2, n=4), rows(0, n=4)]
    whole.update(torch.cat(shares))
    for part, share in zip(parts, shares, strict=True):
        part.update(share)
    mean_of_means = (parts[0].compute() + parts[1].compute()) / 2
    for name, reduce in parts[0]._reductions.items():
        both = torch.stack([getattr(part, name) for part in parts])
        setattr(parts[0], name, reduce(both))
    parts[0]._computed = None
    assert parts[0].compute() == whole.compute()
    assert abs(mean_of_means - whole.compute()) > 0.1


def test_reset_forgets():
    metric = AverageAtK()
    metric.update(rows(4, n=4))
    metric.reset()
    metric.update(rows(0, n=4))
    assert metric.compute() == 0


def test_fewer_answers_than_tries_are_refused():
    with pytest.raises(ValueError, match="pass@3 needs at least 3 answers per prompt, got 2"):
        PassAtK(3).update(rows(1, n=2))
