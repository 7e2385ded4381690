"""Held-out figures of answers that are known before."""

from types import SimpleNamespace

import pytest
import torch

from rlzoo.errors import UserError
from rlzoo.rewards import ExactMatch, FunctionReward, RewardRunner
from rlzoo.training.evaluation import Evaluator
from rlzoo.training.settings import Evaluation
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams

PROMPTS = Prompts((Prompt((1,), "p", "yes"), Prompt((2,), "q", "yes")), (0, 1))
SAMPLED = {"p": ["yes", "no", "no", "no"], "q": ["yes", "yes", "", "no"]}
GREEDY = {"p": ["no"], "q": ["yes"]}
SAMPLING = SamplingParams(5, temperature=0.3, top_p=0.9, top_k=7)


class Given:
    """A sampler whose answers are written down; it keeps what it was asked for."""

    def __init__(self):
        self.asked = []

    def sample(self, policy, prompts, group_size, params, seed):
        self.asked.append((len(prompts), group_size, params, seed))
        table = SAMPLED if params.temperature else GREEDY
        texts = tuple(text for prompt in prompts.rows for text in table[prompt.text])
        assert len(texts) == len(prompts) * group_size
        mask = torch.ones(len(texts), 1, dtype=torch.bool)
        return Rollouts(
            prompts=prompts,
            params=params,
            group_ids=torch.arange(len(prompts)).repeat_interleave(group_size),
            token_ids=mask.long(),
            mask=mask,
            terminated=mask[:, 0],
            log_probs=torch.zeros(mask.shape),
            completions=texts,
        )


def evaluator(rewards=None, **settings):
    given = Evaluation(**{"samples": 4, "temperature": 0.7, "seed": 5, **settings})
    return Evaluator(given, RewardRunner(rewards or [ExactMatch()]))


def test_figures_by_hand():
    """1 and 2 of 4 are right: mean 3 / 8; each prompt has a right one; greedily one of two is."""
    one, sampler = evaluator(), Given()
    one.update(None, sampler, SAMPLING, PROMPTS)
    assert one.compute() == {
        "val/accuracy": pytest.approx(3 / 8),
        "val/pass@4": 1.0,
        "val/greedy": 0.5,
        "val/reward": pytest.approx(3 / 8),
    }
    warm, cold = sampler.asked
    assert warm == (2, 4, SamplingParams(5, temperature=0.7, top_p=0.9, top_k=7), 5)
    assert cold == (2, 1, SamplingParams(5, temperature=0.0, top_p=1.0, top_k=0), 5)


def test_batches_add_up_and_the_next_evaluation_starts_anew():
    one, parts = evaluator(), evaluator()
    one.update(None, Given(), SAMPLING, PROMPTS)
    for i in range(2):
        parts.update(None, Given(), SAMPLING, Prompts(PROMPTS.rows[i : i + 1], (i,)))
    whole = one.compute()
    assert parts.compute() == whole
    for i in (1, 1):  # the second prompt alone, twice: 2 of 4
        parts.update(None, Given(), SAMPLING, Prompts(PROMPTS.rows[i : i + 1], (i,)))
    assert parts.compute()["val/accuracy"] == 0.5 != whole["val/accuracy"]


def length(completion):
    return len(completion) if completion else None


def test_one_reward_judges_and_the_reward_is_the_sum_of_all():
    """An answer is right from 1 on; where a reward abstains the answer is wrong, and no zero."""
    rewards = [ExactMatch(weight=2.0), FunctionReward(length, weight=0.5)]
    one = evaluator(rewards, accuracy="length")
    one.update(None, Given(), SAMPLING, PROMPTS)
    found = one.compute()
    assert found["val/accuracy"] == pytest.approx(7 / 8)  # all but the empty one
    # yes: 2 + 1.5, no: 1, empty: 0 by the first alone
    assert found["val/reward"] == pytest.approx((3 * 3.5 + 4 * 1 + 0) / 8)
    with pytest.raises(UserError, match="'lenght' is not among the rewards; did you mean 'length'"):
        evaluator(rewards, accuracy="lenght")


def test_a_rank_without_prompts_keeps_pace_twice_and_counts_nothing(monkeypatch):
    paced = []
    monkeypatch.setattr("rlzoo.training.evaluation.keep_pace", lambda *args: paced.append(args))
    one, policy, sampler = evaluator(), SimpleNamespace(), Given()
    one.update(policy, sampler, SAMPLING, PROMPTS)
    whole = one.compute()
    sampler.asked.clear()
    one.update(policy, sampler, SAMPLING, PROMPTS)
    one.update(policy, sampler, SAMPLING, Prompts((), ()))
    assert one.compute() == whole
    assert paced == [(policy, sampler, SAMPLING)] * 2
    assert len(sampler.asked) == 2
