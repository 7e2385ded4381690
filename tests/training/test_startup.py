"""What a run says of itself before its first update, and what it verifies."""

import logging
import math
from types import SimpleNamespace

import pytest
import torch

from rlzoo.algorithms import GRPO, GSPO, LUSPO
from rlzoo.errors import UserError
from rlzoo.training.startup import _warn_of_noise, self_check, total_iterations
from rlzoo.types import LogProbs, Prompt, Prompts, Rollouts, SamplingParams


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


@pytest.mark.parametrize(
    ("epochs", "steps", "total"),
    [
        (3, -1, 15),  # of 5 iterations each
        (-1, 7, 4),  # of 2 updates each, the last one begun
        (3, 7, 4),
        (1, 99, 5),
        (-1, -1, None),
        (None, -1, None),
    ],
)
def test_the_run_ends_with_its_epochs_or_its_steps(epochs, steps, total):
    trainer = SimpleNamespace(max_epochs=epochs, max_steps=steps, num_training_batches=5)
    assert total_iterations(SimpleNamespace(updates_per_iteration=2), trainer) == total


class Rows:
    """A policy whose log-probs are given, pass by pass."""

    def __init__(self, *passes):
        self.passes, self.asked = list(passes), []

    def training_mode(self):
        pass

    def log_probs(self, sequences, temperature):
        self.asked.append((len(sequences.input_ids), temperature))
        return LogProbs(self.passes.pop(0)[: len(sequences.input_ids)])


def checked(*passes, tolerance=1e-3):
    mask = torch.tensor([[True, True], [True, False]])
    rollouts = Rollouts(
        prompts=Prompts((Prompt((1,), ""),), (0,)),
        params=SamplingParams(temperature=0.6),
        group_ids=torch.zeros(2).long(),
        token_ids=mask.long(),
        mask=mask,
        terminated=mask[:, 0],
        log_probs=torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]),
        completions=("", ""),
    )
    policy = Rows(*map(torch.tensor, passes))
    self_check(
        SimpleNamespace(policy=policy, algorithm=GRPO(), self_check_tolerance=tolerance), rollouts
    )
    return policy


EXACT = [[-1.0, -2.0], [-3.0, 9.0]]  # what padding holds does not matter


def test_the_self_check_compares_two_passes_and_both_with_the_sampler(caplog):
    """Sampler -1, -2, -3 against -1, -2.2, -3.1: mean .1, largest .2; the ratio to -3.1005."""
    one = [[-1.0, -2.2], [-3.1, 9.0]]
    two = [[-1.0, -2.2], [-3.1005, -9.0]]
    with caplog.at_level(logging.INFO, "rlzoo"):
        policy = checked(one, two, one)
    [line] = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert line == (
        "self-check: max |ratio - 1| 5.0e-04; sampler against trainer, nats per token: "
        "mean 1.0e-01, max 2.0e-01"
    )
    assert policy.asked == [(2, 0.6), (2, 0.6), (1, 0.6)]


def test_what_is_random_is_refused_and_so_is_a_pass_that_is_not_finite():
    off = [[-1.0, -2.01], [-3.0, 9.0]]
    with pytest.raises(UserError, match=r"max \|ratio - 1\| = 9.95e-03, over .*_tolerance 0.001"):
        checked(EXACT, off, EXACT)
    checked(EXACT, off, EXACT, tolerance=0.01)
    with pytest.raises(UserError, match=r"= nan, over"):
        checked(EXACT, [[-1.0, math.nan], [-3.0, 9.0]], EXACT)
