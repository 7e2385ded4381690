"""Estimators and the effective sample size over two gloo processes are those of one."""

import pytest
import torch
from gloo_ranks import of_ranks

from rlzoo.advantages import ESTIMATORS, Outcome, PassAtKAdvantage
from rlzoo.objective.corrections import correction_stats
from rlzoo.training.experience import finish
from rlzoo.types.stats import over_ranks

WORLD = 2
SCORES = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
IDS = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)
LENGTHS = (1, 3, 2, 4, 1, 2, 3, 3, 5, 0, 2, 2)
ABSTAINED = 4


def mine(rank, world):
    """Rows of the prompts at positions rank, rank + world, ...: the groups interleave."""
    return [i for i, group in enumerate(IDS) if group % world == rank]


def outcome(rows):
    scores = torch.tensor(SCORES, dtype=torch.float64)[rows]
    lengths = torch.tensor(LENGTHS)[rows]
    second = torch.where(lengths > 4, torch.nan, 0.1 * lengths.double())
    return Outcome(
        rewards=scores,
        valid=torch.tensor([row != ABSTAINED for row in rows]),
        group_ids=torch.tensor(IDS)[rows],
        mask=torch.arange(5) < lengths[:, None],
        values=0.1 * torch.arange(60.0).view(12, 5).double()[rows].cos(),
        components=torch.stack([scores, second], dim=1),
        weights=torch.tensor([1.0, 0.5]),
        lengths=lengths + 1,
    )


def everything(rank, world):
    made, found = outcome(mine(rank, world)), {}
    for name, cls in ESTIMATORS.items():
        estimator = PassAtKAdvantage(2) if cls is PassAtKAdvantage else cls()
        found[name] = estimator(made).advantages
    weights = 0.5 + torch.arange(60.0).view(12, 5)[mine(rank, world)].sin()
    stats = over_ranks(correction_stats(weights.clamp(min=0), made.mask))
    return {"advantages": found, "means": finish(stats.means()), "rows": mine(rank, world)}


@pytest.fixture(scope="module")
def one():
    return everything(0, 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return of_ranks(everything, WORLD, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_number_of_ranks_changes_no_advantage(one, two, name):
    expected = one["advantages"][name]
    assert expected.any()
    assert not expected[ABSTAINED].any()
    for part in two:
        ours = part["advantages"][name]
        torch.testing.assert_close(ours, expected[part["rows"]], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["batch", "reinforce++", "reinforce++-baseline", "gdpo"])
def test_statistics_of_one_rank_alone_are_other_numbers(one, name):
    """Otherwise the test above could not fail for those that look at the whole batch."""
    alone = ESTIMATORS[name]()(outcome(mine(0, WORLD))).advantages
    assert (alone - one["advantages"][name][mine(0, WORLD)]).abs().max() > 1e-3


def test_the_effective_sample_size_is_of_all_ranks(one, two):
    weights = (0.5 + torch.arange(60.0).view(12, 5).sin()).clamp(min=0).double()
    kept = weights[outcome(list(range(12))).mask]
    by_hand = float(kept.sum() ** 2 / (len(kept) * kept.square().sum()))
    for part in (one, *two):
        assert part["means"]["correction/ess"] == pytest.approx(by_hand, rel=1e-9)
        assert part["means"]["correction/rejected"] == pytest.approx(
            float((kept == 0).double().mean()), rel=1e-12
        )
