"""LOSS-04 to LOSS-07: weights of tokens whose sum is the loss, by hand."""

import pytest
import torch
from ragged import ones_like_lengths, rows

from rlzoo.ops import Denominators, aggregation_weights


def aggregate(token_loss, mask, aggregation, **settings):
    counts = Denominators.count(mask, settings.get("group_ids"))
    weights = aggregation_weights(mask, counts, aggregation, **settings)
    return float((weights * torch.where(mask, token_loss, 0.0)).sum())


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 2.0),  # (4 + 6) / 5
        ("sequence-mean", 3.5),  # (1 + 6) / 2
        ("sequence-sum", 5.0),  # (4 + 6) / 2
        ("constant-length", 1.0),  # (4 + 6) / (2 * 5)
    ],
)
def test_loss_04_aggregations_are_four_different_numbers(aggregation, expected):
    """LOSS-04: token losses [1, 1, 1, 1] and [6]."""
    loss = aggregate(rows([1, 1, 1, 1], [6.0]), ones_like_lengths(4, 1), aggregation, length=5)
    assert loss == pytest.approx(expected)


@pytest.mark.parametrize("width", [5, 9])
def test_loss_05_constant_length_is_a_setting_and_not_the_padded_width(width):
    """LOSS-05: the rows of LOSS-04 in 5 and in 9 columns: 1 both times."""
    loss, mask = torch.full((2, width), 50.0), torch.zeros(2, width, dtype=torch.bool)
    loss[0, :4], loss[1, 0] = 1.0, 6.0
    mask[0, :4], mask[1, 0] = True, True
    assert aggregate(loss, mask, "constant-length", length=5) == pytest.approx(1.0)


@pytest.mark.parametrize(("aggregation", "expected"), [("token-mean", 0.2), ("prompt-mean", 0.5)])
@pytest.mark.parametrize("ids", [(0, 0, 1, 1), (1, 1, 0, 0), (3, 3, 7, 7)])
def test_loss_06_mean_per_prompt_and_mean_per_token(aggregation, expected, ids):
    """LOSS-06: prompt A has 2 tokens of loss 1, prompt B 8 of loss 0: 2 / 10 and (1 + 0) / 2."""
    loss, mask = rows([1.0], [1.0], [0.0] * 3, [0.0] * 5), ones_like_lengths(1, 1, 3, 5)
    group_ids = torch.tensor(ids)
    assert aggregate(loss, mask, aggregation, group_ids=group_ids) == pytest.approx(expected)


def test_loss_06_mean_per_prompt_survives_a_padding_pass_of_another_prompt():
    """A pass that only keeps ranks in step may hold a row of a prompt outside the step."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    counts = Denominators.count(mask, torch.tensor([0, 0]))
    filler = torch.zeros(1, 3, dtype=torch.bool)
    weights = aggregation_weights(filler, counts, "prompt-mean", group_ids=torch.tensor([5]))
    assert torch.equal(weights, torch.zeros(1, 3, dtype=torch.float64))
    nothing = Denominators.count(filler[:0], torch.tensor([]).long())
    weights = aggregation_weights(filler, nothing, "prompt-mean", group_ids=torch.tensor([5]))
    assert torch.equal(weights, torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "sequence-mean", "constant-length", "prompt-mean"]
)
def test_loss_07_a_masked_answer_leaves_both_sides_of_the_fraction(aggregation):
    """LOSS-07: two answers of 4 tokens of loss 1, one masked as truncated: 1, and not 0.5."""
    mask = torch.tensor([[True] * 4, [False] * 4])
    ids = torch.tensor([0, 1])
    loss = aggregate(torch.ones(2, 4), mask, aggregation, length=4, group_ids=ids)
    assert loss == pytest.approx(1.0)
