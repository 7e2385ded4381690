"""Half-precision weights whose float32 masters are what an optimizer moves."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from rlzoo.strategies import master_weights
from rlzoo.strategies.master_weights import Master, stepped, with_masters

RATE = 1e-6
ADAM = partial(torch.optim.AdamW, lr=RATE, weight_decay=0.0)


def model(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    net[2].float()  # a critic's head stays in float32
    net[0].to(dtype)
    return net


def backward(net, part=slice(None)):
    torch.manual_seed(1)
    x, y = torch.randn(16, 6), torch.randn(16, 1)
    hidden = net[1](net[0](x[part].to(net[0].weight.dtype))).to(net[2].weight.dtype)
    ((net[2](hidden).float() - y[part]).square().sum() / 16).backward()


def train(net, make, updates=200):
    groups = [{"params": list(net.parameters())}]
    optimizer = make(groups)
    for _ in range(updates):
        for part in (slice(0, 4), slice(4, 16)):
            backward(net, part)
        nn.utils.clip_grad_norm_(stepped(optimizer), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def read(master):
    master.open()
    value = master.value.detach().clone()
    master.close()
    return value


def values(optimizer):
    return [read(p.master) for p in stepped(optimizer) if hasattr(p, "master")]


def moved(net, start):
    return (net[0].weight.detach().float() - start).abs().mean().item()


def test_small_steps_are_not_lost():
    """200 steps of 1e-6 move what an optimizer holds as in float32; pure bfloat16 stands still."""
    plain, held, pure = (model(kind) for kind in (torch.float32, torch.bfloat16, torch.bfloat16))
    start = held[0].weight.detach().float().clone()
    plain[0].weight.data.copy_(start)
    train(plain, ADAM)
    optimizer = train(held, partial(with_masters, ADAM))
    train(pure, ADAM)
    master = values(optimizer)[0]
    distance = moved(plain, start)
    assert distance == pytest.approx(200 * RATE, rel=0.2)
    assert (master - start).abs().mean().item() == pytest.approx(distance, rel=0.05)
    agreement = torch.corrcoef(
        torch.stack([(master - start).flatten(), (plain[0].weight.detach() - start).flatten()])
    )
    assert agreement[0, 1] > 0.95
    assert moved(pure, start) < 0.2 * distance
    assert held[0].weight.dtype == torch.bfloat16
    assert torch.equal(held[0].weight, master.to(torch.bfloat16))
    assert stepped(optimizer)[1] is held[2].weight


def test_a_value_in_two_halves_loses_nothing():
    """Any bits come back, and the weight is the nearest bfloat16, ties away from zero."""
    torch.manual_seed(0)
    odd = [0.0, -0.0, 1e-40, -3e38, 3.4028234e38, float("inf"), 1.00390625, 1.01171875, -1.00390625]
    value = torch.cat([torch.randn(100_000) * 10.0 ** torch.randn(100_000), torch.tensor(odd)])
    master = Master(nn.Parameter(torch.zeros(len(value), dtype=torch.bfloat16)))
    master.load(value)
    assert torch.equal(read(master).view(torch.int32), value.view(torch.int32))
    tie = value.view(torch.int32) & 0xFFFF == 0x8000
    assert tie.sum() >= 3
    assert torch.equal(master.weight[~tie], value[~tie].bfloat16())
    assert master.weight[-3:].tolist() == [1.0078125, 1.015625, -1.0078125]


def test_between_steps_a_master_takes_two_bytes():
    net = model(torch.bfloat16)
    optimizer = train(net, partial(with_masters, ADAM), 2)
    master = stepped(optimizer)[0].master
    assert master.value.untyped_storage().nbytes() == 0
    assert master.rest.element_size() == 2
    assert master.value.shape == net[0].weight.shape


class TogetherSGD(torch.optim.SGD):
    """Stands for rules that look at all parameters at once."""

    def step(self, closure=None):
        self.seen = [sum(p.untyped_storage().nbytes() > 0 for p in self.param_groups[0]["params"])]
        return super().step(closure)


@pytest.mark.parametrize("rule", ["AdamW", "SGD", "RMSprop"])
def test_turns_do_not_change_a_step(rule, monkeypatch):
    make = partial(getattr(torch.optim, rule), lr=1e-2)
    ends = []
    for size in (2**24, 8):
        monkeypatch.setattr(master_weights, "_TURN", size)
        monkeypatch.setattr(master_weights, "_ADDED", 5 if size == 8 else 2**20)
        net = model(torch.bfloat16)
        net[1] = nn.Sequential(nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        net.bfloat16()
        optimizer = train(net, partial(with_masters, make), 5)
        ends.append(values(optimizer))
        assert len(optimizer.param_groups[0]["params"]) == 4
    assert all(map(torch.equal, *ends))


def test_a_rule_of_somebody_else_sees_all_parameters_at_once(monkeypatch):
    monkeypatch.setattr(master_weights, "_TURN", 1)
    net = model(torch.bfloat16)
    net[2].bfloat16()
    optimizer = train(net, partial(with_masters, partial(TogetherSGD, lr=1e-2)), 1)
    assert optimizer.seen == [2]


def test_a_parameter_without_gradient_stays():
    net = model(torch.bfloat16)
    optimizer = with_masters(ADAM, [{"params": list(net.parameters())}])
    before = net[0].weight.clone()
    net[2].weight.backward(torch.ones_like(net[2].weight))
    stepped(optimizer)
    optimizer.step()
    assert torch.equal(net[0].weight, before)
    assert not optimizer.state[stepped(optimizer)[0]]


def test_values_of_an_older_checkpoint_are_taken():
    net = model(torch.bfloat16)
    optimizer = train(net, partial(with_masters, ADAM), 3)
    state = {**optimizer.state_dict(), "masters": values(optimizer)}
    again = model(torch.bfloat16)
    other = with_masters(ADAM, [{"params": list(again.parameters())}])
    other.load_state_dict(state)
    assert torch.equal(values(other)[0], values(optimizer)[0])
    assert torch.equal(again[0].weight, net[0].weight)


def test_gradients_are_summed_in_float32():
    net = model(torch.bfloat16)
    optimizer = with_masters(ADAM, [{"params": list(net.parameters())}])
    for _ in range(300):  # bfloat16 stops counting at 256
        net[0].weight.backward(torch.full_like(net[0].weight, 1.0))
    assert net[0].weight.grad is None
    assert stepped(optimizer)[0].grad.eq(300).all()


def test_a_saved_state_goes_on_bit_for_bit():
    whole, part = model(torch.bfloat16), model(torch.bfloat16)
    make = partial(with_masters, ADAM)
    reference = train(whole, make, 20)
    state = copy.deepcopy(train(part, make, 10).state_dict())
    again = model(torch.bfloat16)
    again.load_state_dict(part.state_dict())

    def resumed(groups):
        optimizer = make(groups)
        optimizer.load_state_dict(state)
        return optimizer

    optimizer = train(again, resumed, 10)
    assert all(map(torch.equal, values(reference), values(optimizer)))
    assert all(map(torch.equal, whole.parameters(), again.parameters()))
    assert "masters" not in optimizer.param_groups[0]


def test_a_weight_that_is_laid_out_otherwise_is_held_too():
    value = torch.arange(12.0).view(4, 3).T / 7
    weight = nn.Parameter(value.bfloat16())
    assert not weight.is_contiguous()
    optimizer = with_masters(partial(torch.optim.SGD, lr=1.0), [{"params": [weight]}])
    start = weight.detach().float().clone()
    for _ in range(2):
        (weight * value.bfloat16()).sum().backward()
    stepped(optimizer)
    optimizer.step()
    assert torch.equal(values(optimizer)[0], start - 2 * value.bfloat16().float())


def test_float32_is_left_alone():
    net = model(torch.float32)
    optimizer = with_masters(ADAM, [{"params": list(net.parameters())}])
    assert stepped(optimizer) == list(net.parameters())
    assert optimizer.state_dict().keys() == ADAM(net.parameters()).state_dict().keys()


def test_a_second_optimizer_takes_over():
    net = model(torch.bfloat16)
    first = with_masters(ADAM, [{"params": list(net.parameters())}])
    second = with_masters(ADAM, [{"params": list(net.parameters())}])
    backward(net)
    assert stepped(second)[0].grad is not None
    assert stepped(first)[0].grad is None
