"""KL-01, KL-02, KL-03, KL-06, KL-07: value, gradient, placement. Numbers by hand."""

import math

import pytest
import torch

from rlzoo.advantages import GAE, GroupNormalized, Outcome, token_rewards
from rlzoo.algorithms import GRPO
from rlzoo.errors import UserError
from rlzoo.objective.loss import KLPenalty, policy_loss
from rlzoo.ops import Denominators, kl_penalty
from rlzoo.types import PolicyBatch

NAN = float("nan")
LP, REF = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[-1.5]], dtype=torch.float64)


def penalised(kl, log_probs=LP, ref=REF, old=None, advantages=None):
    leaf = log_probs.clone().requires_grad_()
    batch = PolicyBatch(
        log_probs=leaf,
        old_log_probs=log_probs if old is None else old,
        advantages=torch.zeros_like(log_probs) if advantages is None else advantages,
        mask=torch.ones_like(log_probs).bool(),
        ref_log_probs=ref,
    )
    loss, stats = policy_loss(GRPO(), batch, Denominators.count(batch.mask), kl=kl)
    loss.backward()
    return loss.item(), leaf.grad, stats.means()


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", 0.5, 1.0),  # -u, with u = ref - lp = -0.5
        ("k2", 0.125, 0.5),  # u^2 / 2 and -u
        ("k3", 0.106531, 0.393469),  # e^u - u - 1 and 1 - e^u
    ],
)
def test_kl_01_sign_value_and_gradient(estimator, value, gradient):
    """KL-01: lp -1.0, ref -1.5; the loss carries + beta KL."""
    assert kl_penalty(LP, REF, estimator).item() == pytest.approx(value, abs=1e-6)
    loss, grad, means = penalised(KLPenalty(0.1, estimator))
    assert loss == pytest.approx(0.1 * value, abs=1e-7)
    assert grad.item() == pytest.approx(0.1 * gradient, abs=1e-7)
    assert means["policy/kl_ref"] == pytest.approx(value, abs=1e-6)


def test_kl_01_in_the_reward_the_penalty_is_taken_away():
    """KL-01: -beta k1 on the token, none of it in the loss."""
    kl = KLPenalty(0.1, "k1", placement="reward")
    loss, grad, _ = penalised(kl)
    assert loss == 0
    assert grad.item() == 0
    cost = kl.coefficient * kl_penalty(LP, REF, "k1")
    assert token_rewards(torch.zeros(1), torch.tensor([[True]]), cost).item() == -0.05


def test_kl_02_ratio_corrected_k3_has_the_reverse_kl_gradient():
    """KL-02: at r = 1 the value stays 0.106531 and the gradient goes from 0.393469 to 0.5."""
    plain = penalised(KLPenalty(1.0, "k3"))
    corrected = penalised(KLPenalty(1.0, "k3", ratio_corrected=True))
    assert plain[0] == pytest.approx(0.106531, abs=1e-6)
    assert corrected[0] == pytest.approx(0.106531, abs=1e-6)
    assert plain[1].item() == pytest.approx(0.393469, abs=1e-6)
    assert corrected[1].item() == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_03_far_from_the_reference(estimator, gap, corrected):
    """KL-03: ref - lp = +-100: value and gradient are finite, in fp32 too."""
    lp = torch.tensor([[-1.0]])
    kl = KLPenalty(1.0, estimator, ratio_corrected=corrected)
    for old in (lp, lp - 100, lp + 100):
        loss, gradient, means = penalised(kl, lp, lp + gap, old)
        assert math.isfinite(loss)
        assert torch.isfinite(gradient).all()
        assert math.isfinite(means["policy/kl_ref"])


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


def test_kl_06_every_estimator_sees_the_cost():
    """KL-06: GAE takes it token by token, a group estimator from the answer's reward."""
    mask, cost = torch.tensor([[True, True], [True, False]]), torch.tensor([[0.1, 0.3], [0.2, NAN]])
    outcome = Outcome(
        rewards=torch.tensor([1.0, 1.0]),
        valid=torch.tensor([True, True]),
        group_ids=torch.tensor([0, 0]),
        mask=mask,
        penalty=cost,
        values=torch.zeros(2, 2),
    )
    returns = GAE(whitening=False)(outcome).returns
    torch.testing.assert_close(returns, torch.tensor([[0.6, 0.7], [0.8, 0.0]]))
    # rewards 0.6 and 0.8: mean 0.7, std 0.141421
    advantages = GroupNormalized()(outcome).advantages
    side = 0.1 / (0.1414214 + 1e-4)
    torch.testing.assert_close(advantages, torch.tensor([[-side, -side], [side, 0.0]]))


def test_kl_07_a_group_without_signal_is_still_pulled_to_the_reference():
    """KL-07: equal rewards give A = 0 exactly, and the gradient that is left is beta's alone."""
    mask = torch.ones(2, 1, dtype=torch.bool)
    outcome = Outcome(torch.ones(2), mask[:, 0], torch.zeros(2).long(), mask)
    advantages = GroupNormalized()(outcome).advantages.double()
    assert not advantages.any()
    lp, ref = LP.expand(2, 1), REF.expand(2, 1)
    _, gradient, _ = penalised(KLPenalty(0.04, "k3"), lp, ref, advantages=advantages)
    torch.testing.assert_close(gradient, torch.full((2, 1), 0.04 * 0.39346934 / 2).double())
    _, gradient, _ = penalised(None, lp, ref, advantages=advantages)
    assert not gradient.any()


def test_settings_that_cannot_act_are_refused():
    with pytest.raises(UserError, match=r"kl.coefficient must be >= 0, got -0.1"):
        KLPenalty(-0.1)
    with pytest.raises(UserError, match=r"ratio_corrected has no effect with kl.placement=reward"):
        KLPenalty(0.1, placement="reward", ratio_corrected=True)
    with pytest.raises(ValueError, match=r"lacks \['ref_log_probs'\]"):
        penalised(KLPenalty(0.1), ref=None)
