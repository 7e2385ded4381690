"""KL-01, KL-03: the three estimates of one token, by hand. What a loss makes of them is elsewhere."""

import pytest
import torch

from rlzoo.ops import kl_penalty

LP, REF = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[-1.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", 0.5, 1.0),  # -u, with u = ref - lp = -0.5
        ("k2", 0.125, 0.5),  # u^2 / 2 and -u
        ("k3", 0.106531, 0.393469),  # e^u - u - 1 and 1 - e^u
    ],
)
def test_kl_01_value_and_gradient(estimator, value, gradient):
    leaf = LP.clone().requires_grad_()
    estimate = kl_penalty(leaf, REF, estimator)
    estimate.sum().backward()
    assert estimate.item() == pytest.approx(value, abs=1e-6)
    assert leaf.grad.item() == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize(("estimator", "bounded"), [("k2", 200.0), ("k3", 485165174.4)])
def test_kl_03_far_from_the_reference_the_estimate_is_that_of_the_bound(estimator, bounded):
    """KL-03: u = 100 counts as 20: 20^2 / 2, and e^20 - 21; float32 holds e^88 at most."""
    found = kl_penalty(torch.tensor([-1.0]), torch.tensor([99.0]), estimator)
    assert found.item() == pytest.approx(bounded, rel=1e-6)
