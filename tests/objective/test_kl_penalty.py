"""KL-01, KL-02, KL-03, KL-07: the penalty in a loss and in a reward. Numbers by hand."""

import math

import pytest
import torch

from rlzoo.advantages import GroupNormalized, Outcome, token_rewards
from rlzoo.algorithms import GRPO
from rlzoo.errors import UserError
from rlzoo.objective.loss import KLPenalty, policy_loss
from rlzoo.ops import Denominators, kl_penalty
from rlzoo.types import PolicyBatch

LP, REF = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[-1.5]], dtype=torch.float64)


def penalized(kl, log_probs=LP, ref=REF, old=None, advantages=None):
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
    loss, grad, means = penalized(KLPenalty(0.1, estimator))
    assert loss == pytest.approx(0.1 * value, abs=1e-7)
    assert grad.item() == pytest.approx(0.1 * gradient, abs=1e-7)
    assert means["policy/kl_ref"] == pytest.approx(value, abs=1e-6)


def test_kl_01_in_the_reward_the_penalty_is_taken_away():
    """KL-01: -beta k1 on the token, none of it in the loss."""
    kl = KLPenalty(0.1, "k1", placement="reward")
    loss, grad, _ = penalized(kl)
    assert loss == 0
    assert grad.item() == 0
    cost = kl.coefficient * kl_penalty(LP, REF, "k1")
    assert token_rewards(torch.zeros(1), torch.tensor([[True]]), cost).item() == -0.05


def test_kl_02_ratio_corrected_k3_has_the_reverse_kl_gradient():
    """KL-02: at r = 1 the value stays 0.106531 and the gradient goes from 0.393469 to 0.5."""
    plain = penalized(KLPenalty(1.0, "k3"))
    corrected = penalized(KLPenalty(1.0, "k3", ratio_corrected=True))
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
        loss, gradient, means = penalized(kl, lp, lp + gap, old)
        assert math.isfinite(loss)
        assert torch.isfinite(gradient).all()
        assert math.isfinite(means["policy/kl_ref"])


def test_kl_07_a_group_without_signal_is_still_pulled_to_the_reference():
    """KL-07: equal rewards give A = 0 exactly, and the gradient that is left is beta's alone."""
    mask = torch.ones(2, 1, dtype=torch.bool)
    outcome = Outcome(torch.ones(2), mask[:, 0], torch.zeros(2).long(), mask)
    advantages = GroupNormalized()(outcome).advantages.double()
    assert not advantages.any()
    lp, ref = LP.expand(2, 1), REF.expand(2, 1)
    _, gradient, _ = penalized(KLPenalty(0.04, "k3"), lp, ref, advantages=advantages)
    torch.testing.assert_close(gradient, torch.full((2, 1), 0.04 * 0.39346934 / 2).double())
    _, gradient, _ = penalized(None, lp, ref, advantages=advantages)
    assert not gradient.any()


def test_settings_that_cannot_act_are_refused():
    with pytest.raises(UserError, match=r"kl.coefficient must be >= 0, got -0.1"):
        KLPenalty(-0.1)
    with pytest.raises(UserError, match=r"ratio_corrected has no effect with kl.placement=reward"):
        KLPenalty(0.1, placement="reward", ratio_corrected=True)
    with pytest.raises(ValueError, match=r"lacks \['ref_log_probs'\]"):
        penalized(KLPenalty(0.1), ref=None)
