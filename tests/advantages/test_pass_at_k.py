"""Pass@k advantages against all sets of k answers written out."""

import itertools
import math

import pytest
from outcomes import close, first, outcome

from rlzoo.advantages import PassAtKAdvantage
from rlzoo.errors import UserError

NAN = float("nan")


def subsets(rewards, k):
    """Mean over the sets of k with the answer, of the set's normalized reward."""
    sets = list(itertools.combinations(range(len(rewards)), k))
    won = [max(rewards[i] for i in chosen) for chosen in sets]
    mean = sum(won) / len(won)
    std = math.sqrt(sum((x - mean) ** 2 for x in won) / len(won))
    found = []
    for i in range(len(rewards)):
        mine = [x for x, chosen in zip(won, sets, strict=True) if i in chosen]
        found.append((sum(mine) / len(mine) - mean) / std if std > 0 else 0.0)
    return found


@pytest.mark.parametrize("right", range(8))
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_pass_at_k_is_the_average_over_all_sets(k, right):
    """Every set of k of 7 answers written out."""
    rewards = [1.0] * right + [0.0] * (7 - right)
    ours = first(PassAtKAdvantage(k), outcome(rewards))
    close(ours, subsets(rewards, k))
    assert ours.sum().item() == pytest.approx(0.0, abs=1e-12)


def test_pass_at_k_gives_nothing_where_every_set_is_right_or_there_is_one_set():
    assert not PassAtKAdvantage(3)(outcome([1.0, 1.0, 0.0, 0.0])).advantages.any()
    abstained = outcome([1.0, 0.0, 0.0, NAN], valid=[True, True, True, False])
    assert PassAtKAdvantage(2)(abstained).advantages.any()
    assert not PassAtKAdvantage(3)(abstained).advantages.any()
    assert PassAtKAdvantage(4).minimum_group == 5


def test_pass_at_k_refuses_other_rewards_than_right_or_wrong():
    with pytest.raises(UserError, match=r"a reward is 0.3; it reads only 0 and 1"):
        PassAtKAdvantage(1)(outcome([1.0, 0.3, 0.0]))
    with pytest.raises(UserError, match="k must be >= 1, got 0"):
        PassAtKAdvantage(0)
