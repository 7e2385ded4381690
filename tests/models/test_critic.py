"""Values of response tokens."""

import pytest
import torch

from rlzoo.errors import UserError
from rlzoo.models import SeparateCritic, SharedCritic

KINDS = [SharedCritic, SeparateCritic]


def make(kind, policy):
    critic = kind()
    critic.build(policy)
    return critic


def randomise(critic):
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.head.weight)
    torch.nn.init.constant_(critic.head.bias, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_values_start_at_zero(tiny, sequences, kind):
    policy = tiny("qwen3")
    values = make(kind, policy).values(sequences, policy.log_probs(sequences).hidden)
    assert values.dtype == torch.float32
    assert values.shape == sequences.mask.shape
    assert values.eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_read_where_the_log_prob_is(tiny, sequences, kind):
    """Changing token t of a row leaves the values up to t, that token's own included."""
    policy = tiny("qwen3")
    critic = make(kind, policy)
    randomise(critic)
    before = critic.values(sequences, policy.log_probs(sequences).hidden)
    assert before[~sequences.mask].eq(0).all()
    assert before[sequences.mask].abs().min() > 0
    sequences.input_ids[1, 1 + 2] += 1
    after = critic.values(sequences, policy.log_probs(sequences).hidden)
    torch.testing.assert_close(after[1, :3], before[1, :3])
    assert (after - before)[1, 3:].abs().min() > 1e-4


def test_both_critics_start_from_the_same_trunk(tiny, sequences):
    policy = tiny("qwen3")
    hidden = policy.log_probs(sequences).hidden
    shared, separate = (make(kind, policy) for kind in KINDS)
    randomise(shared)
    randomise(separate)
    values = separate.values(sequences, hidden)
    torch.testing.assert_close(values, shared.values(sequences, hidden))


def test_only_the_shared_critic_trains_the_policy(tiny, sequences):
    policy = tiny("qwen3")
    for kind in KINDS:
        critic = make(kind, policy)
        randomise(critic)
        policy.zero_grad()
        critic.values(sequences, policy.log_probs(sequences).hidden).sum().backward()
        reached = any(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters())
        assert reached == (kind is SharedCritic)
        own = dict(critic.named_parameters())
        assert all(p.grad is not None for p in own.values())
        assert len(own) == 2 if kind is SharedCritic else len(own) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_fp32_under_autocast_and_bf16_weights(tiny, sequences, kind):
    policy = tiny("qwen3", dtype="bfloat16")
    critic = make(kind, policy)
    randomise(critic)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = policy.log_probs(sequences).hidden
        values = critic.values(sequences, hidden)
    exact = hidden.float() @ critic.head.weight[0] + 0.5
    torch.testing.assert_close(values[sequences.mask], exact, atol=1e-5, rtol=1e-5)


def test_lr_scale_must_be_positive():
    with pytest.raises(UserError, match="lr_scale must be > 0, not 0"):
        SharedCritic(lr_scale=0)
