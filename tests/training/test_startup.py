"""A warning that a clip band is narrower than the noise it has to live with."""

import logging
from types import SimpleNamespace

import torch

from rlzoo.algorithms import GRPO, GSPO, LUSPO
from rlzoo.training.startup import _warn_of_noise


def noise_warning(algorithm, noise, length, caplog):
    rollouts = SimpleNamespace(lengths=lambda: torch.full((4,), length))
    with caplog.at_level(logging.WARNING, "rlzoo"):
        _warn_of_noise(algorithm, noise, rollouts)
    return bool(caplog.records)


def test_loss_14_noise_of_bfloat16_exceeds_gspos_band_over_short_answers(caplog):
    """LOSS-14: 0.0045 nats per token average out below 3e-4 only over 225 tokens."""
    assert noise_warning(GSPO(), 0.0045, 100, caplog)
    caplog.clear()
    assert not noise_warning(GSPO(), 0.0045, 256, caplog)
    assert not noise_warning(GRPO(), 0.0045, 100, caplog)
    assert not noise_warning(LUSPO(), 0.0045, 100, caplog)  # its band is ten times as wide
    assert noise_warning(LUSPO(), 0.0045, 4, caplog)
