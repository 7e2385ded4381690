"""What estimators share: rewards by token, whitening, and groups without a signal."""

import pytest
import torch

from rlzoo.advantages import Outcome, rows_with_signal, token_rewards, whiten
from rlzoo.ops import kl_penalty

NAN = float("nan")


def test_adv_08_whitening_is_over_valid_tokens():
    """ADV-08: [1, 3, padding] becomes -+0.7071 (unbiased std 1.4142)."""
    mask = torch.tensor([[True, True, False]])
    ours = whiten(torch.tensor([[1.0, 3.0, NAN]]), mask)
    torch.testing.assert_close(ours, torch.tensor([[-0.7071068, 0.7071068, 0.0]]))
    single = whiten(torch.tensor([[5.0, NAN]]), torch.tensor([[True, False]]))
    assert single.tolist() == [[5.0, 0.0]]
    assert whiten(torch.tensor([[NAN]]), torch.tensor([[False]])).tolist() == [[0.0]]


@pytest.mark.parametrize(("size", "share"), [(2, 0.702), (4, 0.449), (8, 0.201)])
def test_log_03_share_of_groups_without_signal(size, share):
    """LOG-03: success rate p = .1819 gives p^G + (1 - p)^G, counted over 20000 drawn groups."""
    success = 0.1819
    assert success**size + (1 - success) ** size == pytest.approx(share, abs=1e-3)
    rng = torch.Generator().manual_seed(0)
    scores = (torch.rand(20000 * size, generator=rng) < success).float()
    ids = torch.arange(20000).repeat_interleave(size)
    mask = torch.ones(len(ids), 1, dtype=torch.bool)
    _, flat, total = rows_with_signal(Outcome(scores, mask[:, 0], ids, mask))
    assert total == 20000
    assert flat / total == pytest.approx(share, abs=0.01)


def test_kl_06_token_rewards_with_the_penalty():
    """KL-06: score 1, beta 0.1, lp - ref [.2, -.1, .3, masked NaN]: [-.02, .01, .97, 0]."""
    mask = torch.tensor([[True, True, True, False]])
    ref = torch.tensor([[-1.0, -1.0, -1.0, NAN]])
    cost = 0.1 * kl_penalty(ref + torch.tensor([[0.2, -0.1, 0.3, NAN]]), ref, "k1")
    rewards = token_rewards(torch.tensor([1.0]), mask, cost)
    torch.testing.assert_close(rewards, torch.tensor([[-0.02, 0.01, 0.97, 0.0]]))


@pytest.mark.parametrize("penalty", [None, torch.full((3, 3), NAN)])
def test_an_empty_answer_earns_nothing_and_never_on_padding(penalty):
    """ADV, LOSS-08: a score at index length - 1 = -1 would land on the last column."""
    mask = torch.tensor([[False] * 3, [True, True, False], [True, False, True]])
    penalty = None if penalty is None else penalty.masked_fill(mask, 0.25)
    rewards = token_rewards(torch.tensor([5.0, 7.0, 9.0]), mask, penalty)
    cost = 0.0 if penalty is None else 0.25
    expected = [[0, 0, 0], [-cost, 7 - cost, 0], [-cost, 0, 9 - cost]]
    torch.testing.assert_close(rewards, torch.tensor(expected, dtype=torch.float32))
