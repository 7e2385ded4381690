"""LOSS-15, LOSS-17: ratios of answers, and exponentials that cannot overflow."""

import pytest
import torch

from rlzoo.ops import bounded_exp, sequence_ratio


def test_loss_15_the_ratio_of_an_answer_is_a_mean_and_not_a_product():
    """LOSS-15: 1000 log-ratios of -0.001: e^-0.001 = 0.9990, and not e^-1 = 0.3679."""
    old = torch.full((1, 1000), -1.0)
    ratio = sequence_ratio(old - 0.001, old, torch.ones(1, 1000).bool())
    assert ratio.item() == pytest.approx(0.9990005, abs=1e-6)


def test_loss_17_healthy_ratios_are_unchanged_bit_for_bit():
    log_ratio = torch.linspace(-19.9, 19.9, 4001)
    assert torch.equal(bounded_exp(log_ratio), log_ratio.exp())
    huge = torch.tensor([100.0, -100.0, 1e9], requires_grad=True)
    bounded_exp(huge).sum().backward()
    assert torch.isfinite(huge.grad).all()
