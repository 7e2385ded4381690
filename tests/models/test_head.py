"""The LM head in blocks, against the plain formula."""

import pytest
import torch
from torch import nn

from rlzoo.models.head import linear_log_probs, plain_weight
from rlzoo.models.log_probs import token_log_probs


def inputs(tokens=37, dtype=torch.float32):
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(50, 8, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(0, 50, (tokens,))


def results(found, hidden, weight):
    loss = (found * torch.linspace(-2, 1, len(found))).sum()
    return found.detach(), *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("chunk", [1, 7, 37, 100])
def test_blocks_are_the_plain_formula(chunk):
    hidden, weight, targets = inputs()
    plain = torch.log_softmax(hidden @ weight.T / 0.7, -1).gather(-1, targets[:, None])[:, 0]
    ours = linear_log_probs(hidden, weight, targets, 0.7, chunk)
    for one, two in zip(results(ours, hidden, weight), results(plain, hidden, weight), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_frozen_weights_get_no_gradient_and_no_tokens_give_zero():
    hidden, weight, targets = inputs()
    linear_log_probs(hidden, weight.detach(), targets, 1.0, 9).sum().backward()
    assert hidden.grad is not None
    hidden, weight, targets = inputs(0)
    linear_log_probs(hidden, weight, targets, 1.0, 9).sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(0).all()


def test_at_most_two_blocks_are_alive():
    """Between forward and backward one block of logits waits; nothing else is V wide."""
    hidden, weight, targets = inputs()
    kept = []

    def keep(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = linear_log_probs(hidden, weight, targets, 1.0, 10)
    assert sorted(kept) == sorted([(37, 8), (50, 8), (37,), (37,)])
    assert found.grad_fn.last.shape == (7, 50)
    found.sum().backward()


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_normalized_in_fp32(autocast):
    hidden, weight, targets = inputs(dtype=torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        ours = linear_log_probs(hidden, weight, targets, 1.0, 10)
        generic, _ = token_log_probs(hidden, targets, lambda h: h @ weight.T, chunk=10)
    assert ours.dtype == torch.float32
    for one, two in zip(
        results(ours, hidden, weight), results(generic, hidden, weight), strict=True
    ):
        assert one.dtype == two.dtype
        torch.testing.assert_close(one.float(), two.float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(ours, generic, atol=1e-6, rtol=0)


def test_only_a_plain_matrix_is_taken():
    plain = nn.Linear(4, 6, bias=False)
    assert plain_weight(plain) is plain.weight
    hooked = nn.Linear(4, 6, bias=False)
    hooked.register_forward_pre_hook(lambda *_: None)
    sharded = nn.Linear(4, 6, bias=False)
    sharded.weight = nn.Parameter(torch.empty(0))
    for other in (nn.Linear(4, 6), hooked, sharded, nn.Sequential(plain), lambda hidden: hidden):
        assert plain_weight(other) is None
