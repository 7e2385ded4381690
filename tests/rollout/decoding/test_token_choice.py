"""Picking one token by inverting the cumulative distribution."""

import pytest
import torch

from rlzoo.rollout.decoding.token_choice import draw
from rlzoo.types import SamplingParams


def pick(probs, uniforms, **params):
    logits = torch.tensor(probs).log().expand(len(uniforms), -1)
    return draw(logits, torch.tensor(uniforms, dtype=torch.float64), SamplingParams(**params))


def test_the_cumulative_distribution_is_inverted():
    tokens, log_probs = pick([0.5, 0.2, 0.3], [0.0, 0.49, 0.51, 0.69, 0.71, 0.99])
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2]
    expected = torch.tensor([0.5, 0.5, 0.2, 0.2, 0.3, 0.3]).log()
    torch.testing.assert_close(log_probs, expected)


@pytest.mark.parametrize("size", [700, 5000])
def test_every_token_gets_its_share_of_the_unit_interval(size):
    """Uniforms on a grid: a token's count is its probability to one grid step at either end."""
    torch.manual_seed(0)
    logits, steps = torch.randn(size) * 3, 4096
    logits[::7] = -torch.inf
    uniforms = ((torch.arange(steps) + 0.5) / steps).double()
    tokens, log_probs = draw(logits.expand(steps, -1), uniforms, SamplingParams(temperature=0.7))
    probs = (logits.double() / 0.7).softmax(-1)
    counts = tokens.bincount(minlength=size)
    assert (counts - probs * steps).abs().max() < 1.01
    assert counts[::7].sum() == 0
    torch.testing.assert_close(log_probs, probs[tokens].log().float(), atol=2e-6, rtol=0)


def test_a_token_without_probability_is_never_picked():
    """Neither at the ends nor in between, whatever the uniform."""
    edge = 1 - 2**-53
    tokens, log_probs = pick([0.0, 0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5 - 2**-40, edge])
    assert tokens.tolist() == [1, 3, 1, 3]
    assert torch.isfinite(log_probs).all()
    many = torch.cat([torch.full((1000,), 1e-3), torch.zeros(50)]).tolist()
    assert pick(many, [edge])[0].item() == 999


def test_lp04_filters_choose_tokens_but_log_probs_are_of_the_whole_softmax():
    """LP-04: top_p 0.5 of [.6, .3, .1] leaves token 0, whose log-prob stays log 0.6."""
    uniforms = [0.01, 0.5, 0.65, 0.69, 0.95]
    tokens, log_probs = pick([0.1, 0.6, 0.3], uniforms, top_p=0.5)
    assert tokens.tolist() == [1] * 5
    torch.testing.assert_close(log_probs, torch.full((5,), 0.6).log())
    assert pick([0.1, 0.6, 0.3], uniforms, top_k=2)[0].tolist() == [1, 1, 1, 2, 2]
    assert pick([0.1, 0.6, 0.3], uniforms, top_p=0.61)[0].tolist() == [1, 1, 1, 2, 2]
    assert pick([0.1, 0.6, 0.3], uniforms)[0].tolist() == [0, 1, 1, 1, 2]
    assert pick([0.25] * 4, [0.99], top_k=1)[0].tolist() == [0], "one of several equals"


def test_temperature_zero_takes_the_most_likely():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    tokens, log_probs = draw(logits, None, SamplingParams(temperature=0))
    assert tokens.item() == 1
    torch.testing.assert_close(log_probs, logits.log_softmax(-1)[:, 1])
