"""Every objective moves the weights the right way, and learns a bandit."""

import pytest
import torch
from tiny_runs import reward

from rlzoo.types import Sequences

pytestmark = pytest.mark.timeout(60)

OBJECTIVES = {
    "GRPO": {"model.algorithm": "GRPO"},
    "GSPO": {"model.algorithm": "GSPO"},
    "CISPO": {"model.algorithm": "CISPO"},
    "PPO": {"model.algorithm": "PPO", "model.critic": "SeparateCritic"},
    "PPO, shared critic": {
        "model.algorithm": "PPO",
        "model.critic": "SharedCritic",
        "model.value": {"coefficient": 0.1},
    },
}
QUIET = {
    "trainer.num_sanity_val_steps": 0,
    "trainer.limit_val_batches": 0,
    "model.minibatches": 2,
}


def first_token_log_prob(policy, prompts, letter):
    """Mean log-probability that an answer to one of the prompts begins with the letter."""
    token = policy.encode(letter)[0]
    total = 0.0
    for prompt in prompts:
        ids = torch.tensor([[*prompt.token_ids, token]])
        lengths = torch.tensor([len(prompt.token_ids)])
        with torch.no_grad():
            predicted = policy.log_probs(
                Sequences(ids, lengths, torch.ones(1, 1, dtype=torch.bool))
            )
        total += predicted.log_probs.item()
    return total / len(prompts)


def gain(run_fit, letters, objective, function):
    changes = {
        "model.rewards": [reward(function)],
        "model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "model.group_size": 8,
    }
    run = run_fit({**letters, **QUIET, **OBJECTIVES[objective], **changes})
    assert run.module.progress["iterations"] == 2
    prompts = run.cli[0].datamodule.train_prompts
    trained = first_token_log_prob(run.module.policy, prompts, "b")
    policy = run.module.policy
    start = policy.source.weights("float32", "sdpa", policy.init_seed)
    policy.causal_lm.load_state_dict(start.state_dict())
    return trained - first_token_log_prob(policy, prompts, "b")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_iterations_make_rewarded_answers_likelier(run_fit, letters, objective):
    assert gain(run_fit, letters, objective, "first_b") > 0.01
    assert gain(run_fit, letters, objective, "first_not_b") < -0.01


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_bandit_is_learned(run_fit, letters, objective):
    """Five tokens, one answer token, and a reward for one of them: from a fifth to nine tenths."""
    changes = {
        "model.rewards": [reward("first_b")],
        "model.sampling.max_new_tokens": 1,
        "model.group_size": 8,
        "model.optimizer.init_args": {"lr": 0.03, "weight_decay": 0.0},
        "data.prompts_per_iteration": 8,
        "trainer.max_epochs": 30,
        "checkpoint": {"every_n_iterations": 0},
    }
    run = run_fit({**letters, **QUIET, **OBJECTIVES[objective], **changes})
    rewards = [value for _, value in run.curves()["reward/mean"]]
    assert 0.05 < sum(rewards[:2]) / 2 < 0.5
    assert sum(rewards[-5:]) / 5 > 0.9, rewards
