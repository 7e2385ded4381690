"""Generalised advantages: by hand, over gaps and padding, whitened."""

import pytest
import torch
from outcomes import float32_outcome

from rlzoo.advantages import GAE, generalized_advantages, token_rewards
from rlzoo.errors import UserError

NAN = float("nan")


@pytest.mark.parametrize("junk", [100.0, NAN])
def test_adv_08_gae_with_junk_on_padding(junk):
    """ADV-08: r [0, 1, 0], V [.5, .25, junk], gamma 1, lambda .95.

    delta = [.25 - .5, 1 - .25], A = [-.25 + .95 * .75, .75]; V of the padding would add to both.
    """
    mask = torch.tensor([[True, True, False]])
    values = torch.tensor([[0.5, 0.25, junk]])
    rewards = token_rewards(torch.tensor([1.0]), mask)
    ours = generalized_advantages(rewards, values, mask, gamma=1.0, lam=0.95)
    torch.testing.assert_close(ours.advantages, torch.tensor([[0.4625, 0.75, 0.0]]))
    torch.testing.assert_close(ours.returns, torch.tensor([[0.9625, 1.0, 0.0]]))


def test_adv_08_gae_steps_over_a_gap():
    """A token that the policy did not write passes value and advantage on as if it were absent."""
    rewards, values = torch.tensor([[0.5, 9.0, 1.0]]), torch.tensor([[0.2, 9.0, 0.4]])
    gap, none = torch.tensor([[True, False, True]]), torch.ones(1, 2).bool()
    ours = generalized_advantages(rewards, values, gap, gamma=0.9, lam=0.8)
    dense = generalized_advantages(rewards[:, [0, 2]], values[:, [0, 2]], none, gamma=0.9, lam=0.8)
    assert torch.equal(ours.advantages[:, [0, 2]], dense.advantages)
    assert torch.equal(ours.returns[:, [0, 2]], dense.returns)
    assert ours.advantages[0, 1] == ours.returns[0, 1] == 0
    # delta_0 = .5 + .9 * .4 - .2 = .66, A_2 = .6, A_0 = .66 + .72 * .6
    assert ours.advantages[0, 0].item() == pytest.approx(1.092)


def test_gae_leaves_abstaining_rows_out_and_whitens_after_the_targets():
    """GAE(1, 1) is reward to go minus value; the row that abstained touches no statistic."""
    mask = torch.ones(3, 2, dtype=torch.bool)
    values = torch.tensor([[0.5, 0.0], [0.0, 0.5], [NAN, NAN]])
    made = float32_outcome([1.0, 0.0, NAN], valid=[True, True, False], mask=mask, values=values)
    raw = GAE(whitening=False)(made)
    torch.testing.assert_close(raw.advantages[:2], torch.tensor([[0.5, 1.0], [0.0, -0.5]]))
    torch.testing.assert_close(raw.returns[:2], torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    white = GAE()(made)
    assert torch.equal(white.returns, raw.returns)
    kept = white.advantages[:2]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.var().item() == pytest.approx(1.0, abs=1e-6)
    assert not white.advantages[2].any()


def test_gae_refuses_a_batch_without_a_critic_and_bad_discounts():
    with pytest.raises(ValueError, match="carries no values"):
        GAE()(float32_outcome([1.0]))
    for key in ("gamma", "lam"):
        with pytest.raises(UserError, match=f"GAE: {key} must be between 0 and 1, got 1.1"):
            GAE(**{key: 1.1})
