"""One optimizer over policy and critic: what it moves, at which rates, and until when."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from tiny_models import build

from rlzoo.errors import UserError
from rlzoo.models import SeparateCritic
from rlzoo.rewards import ExactMatch
from rlzoo.strategies.master_weights import stepped
from rlzoo.training.optimizer import build_optimizer, total_updates
from rlzoo.training.settings import Schedule, Settings


def trainer(strategy=None, **fields):
    given = {"max_steps": -1, "estimated_stepping_batches": 6, **fields}
    return SimpleNamespace(strategy=strategy or SingleDeviceStrategy(), **given)


def settings(policy=None, **fields):
    given = {"optimizer": partial(torch.optim.SGD, lr=0.1), **fields}
    return Settings(policy=policy or build("qwen3"), rewards=[ExactMatch()], **given)


def test_the_critic_has_a_rate_of_its_own_and_both_follow_the_schedule():
    critic = SeparateCritic(lr_scale=3.0)
    schedule = Schedule(warmup_updates=1, decay="linear")
    given = settings(advantage=None, critic=critic, schedule=schedule, minibatches=2)
    critic.build(given.policy)
    [optimizer], [scheduler] = build_optimizer(given, trainer(estimated_stepping_batches=3))
    rates = []
    for _ in range(7):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    # A warm-up of one, then from 1 to 0 over the other five of 3 iterations x 2 updates.
    shares = [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    assert [rate for rate, _ in rates] == pytest.approx([0.1 * share for share in shares])
    assert [rate for _, rate in rates] == pytest.approx([0.3 * share for share in shares])
    held = [set(group["params"]) for group in optimizer.param_groups]
    assert held == [set(given.policy.parameters()), set(critic.parameters())]


def test_only_adapters_are_moved_where_there_are_any():
    policy = build("qwen3", lora={"r": 2})
    [optimizer], _ = build_optimizer(settings(policy), trainer())
    [group] = optimizer.param_groups
    moved = {id(p) for p in group["params"]}
    assert moved == {id(p) for name, p in policy.named_parameters() if "lora_" in name}


@pytest.mark.parametrize(("strategy", "held"), [(None, True), (SimpleNamespace(), False)])
def test_half_precision_is_held_in_float32_where_weights_are_whole(strategy, held):
    policy = build("qwen3", dtype="bfloat16")
    [optimizer], _ = build_optimizer(settings(policy), trainer(strategy))
    dtypes = {p.dtype for p in stepped(optimizer)}
    assert dtypes == ({torch.float32} if held else {torch.bfloat16})


def test_a_strategy_may_split_a_group_and_each_part_keeps_its_rate():
    strategy = SingleDeviceStrategy()
    strategy.split = lambda group: [
        {"params": group["params"][:1]},
        {"params": group["params"][1:]},
    ]
    critic = SeparateCritic(lr_scale=2.0)
    given = settings(critic=critic)
    critic.build(given.policy)
    [optimizer], _ = build_optimizer(given, trainer(strategy))
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([0.1, 0.1, 0.2, 0.2])


@pytest.mark.parametrize(
    ("schedule", "max_steps", "batches", "total"),
    [
        (Schedule(), -1, math.inf, math.inf),  # no end is needed
        (Schedule(decay="linear"), -1, 6, 24.0),  # batches are iterations of 2 x 2 updates
        (Schedule(decay="linear"), 6, 6, 6.0),  # max_steps counts updates already
        (Schedule(decay="linear"), 100, 10, 40.0),  # ten batches end before a hundred updates
        (Schedule(decay="linear"), 25, 10, 25.0),  # and after twenty-five
    ],
)
def test_the_end_of_a_schedule_is_counted_in_updates(schedule, max_steps, batches, total):
    given = settings(schedule=schedule, epochs=2, minibatches=2)
    run = trainer(max_steps=max_steps, estimated_stepping_batches=batches)
    assert total_updates(given, run) == total


def test_a_decay_without_an_end_and_a_setting_that_the_rule_refuses_are_said():
    endless = trainer(estimated_stepping_batches=math.inf)
    with pytest.raises(UserError, match=r"decay cosine needs an end; set trainer.max_epochs"):
        total_updates(settings(schedule=Schedule(decay="cosine")), endless)
    wrong = settings(optimizer=partial(torch.optim.SGD, lr=-1.0))
    with pytest.raises(UserError, match=r"refuses its settings: Invalid learning rate: -1.0"):
        build_optimizer(wrong, trainer())
