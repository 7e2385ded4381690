"""pass@k against its closed form, and its mean over ranks."""

from itertools import combinations
from math import comb

import pytest
import torch
from torchmetrics import MeanMetric

from rlzoo.training.held_out_metrics import pass_at_k


def rows(*counts, n):
    return torch.tensor([[i < c for i in range(n)] for c in counts])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(k, right):
    answers = [i < right for i in range(5)]
    draws = [any(draw) for draw in combinations(answers, k)]
    assert pass_at_k(rows(right, n=5), k).item() == pytest.approx(sum(draws) / comb(5, k))


def test_pass_at_1_is_the_average_and_pass_at_n_is_any():
    correct = rows(0, 1, 3, 4, n=4)
    assert pass_at_k(correct, 1).tolist() == [0, 0.25, 0.75, 1]
    assert pass_at_k(correct, 4).tolist() == [0, 1, 1, 1]


def test_two_ranks_are_one_weighted_by_prompts():
    """Three prompts on one rank and one on the other: a mean of means would be another number."""
    shares = [pass_at_k(rows(4, 4, 2, n=4), 2), pass_at_k(rows(0, n=4), 2)]
    whole, parts = MeanMetric(), [MeanMetric(), MeanMetric()]
    whole.update(torch.cat(shares))
    for part, share in zip(parts, shares, strict=True):
        part.update(share)
    mean_of_means = (parts[0].compute() + parts[1].compute()) / 2
    for name, reduce in parts[0]._reductions.items():
        setattr(parts[0], name, reduce(torch.stack([getattr(part, name) for part in parts])))
    parts[0]._computed = None
    assert parts[0].compute() == whole.compute()
    assert abs(mean_of_means - whole.compute()) > 0.1


def test_fewer_answers_than_tries_are_refused():
    with pytest.raises(ValueError, match="pass@3 needs at least 3 answers per prompt, got 2"):
        pass_at_k(rows(1, n=2), 3)
