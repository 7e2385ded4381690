"""Which rows of an iteration train, at which temperature, and with which coefficients."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import QWEN

from rlzoo.filters import MaskTruncated, SkipSilentGroups
from rlzoo.models import DensePolicy
from rlzoo.objective import KLPenalty
from rlzoo.rewards import FunctionReward, RewardRunner
from rlzoo.training.control import AdaptiveKL
from rlzoo.training.experience import judge
from rlzoo.training.learner import Learner
from rlzoo.training.settings import Settings
from rlzoo.types import Prompt, Prompts, SamplingParams
from rlzoo.types.stats import Stats

TEXTS = ("a", "ab", "b", "c")


@pytest.fixture(scope="module")
def settings():
    policy = DensePolicy(config=QWEN, characters="abc")
    policy.load()
    rewards = [FunctionReward("reward_functions.silent_for_short_prompts")]
    return Settings(policy=policy, rewards=rewards, sampling=SamplingParams(4), group_size=8)


@pytest.fixture(scope="module")
def judged(settings):
    """Answers of which some are cut and some groups are silent, and their rewards."""
    rows = tuple(Prompt(tuple(settings.policy.encode(text)), text) for text in TEXTS)
    prompts = Prompts(rows, tuple(range(len(rows))))
    rollouts = settings.sampler.sample(settings.policy, prompts, 8, settings.sampling, 0)
    return rollouts, judge(RewardRunner(settings.rewards), rollouts)


def parameters(settings):
    return [p for p in settings.policy.parameters() if p.requires_grad]


def gradient(settings, rollouts, rewards):
    """The gradient of one update over the rollouts."""
    learner, stats = Learner(settings), Stats()
    experience = learner.experience(rollouts, rewards, 0, stats)
    settings.policy.zero_grad()
    (minibatch,) = learner.cut(experience, 0)
    for micro in minibatch.micro_batches:
        learner.loss(experience, minibatch, micro, stats, on_policy=True).backward()
    return torch.cat([p.grad.flatten() for p in parameters(settings)]), experience, minibatch


def test_cut_answers_leave_both_sides_of_the_bar(settings, judged):
    """LOSS-07: their tokens are neither summed nor counted; their rewards stay in their group."""
    rollouts, rewards = judged
    ended = rollouts.terminated
    assert 0 < ended.sum() < len(ended)
    plain, with_all, _ = gradient(settings, rollouts, rewards)
    masked, without, minibatch = gradient(settings, *MaskTruncated()(rollouts, rewards, None))
    assert torch.equal(without.mask, rollouts.mask & ended[:, None])
    assert minibatch.denominators.sequences == int(ended.sum())
    assert minibatch.denominators.tokens == int(rollouts.mask[ended].sum())
    assert torch.equal(without.advantages[ended], with_all.advantages[ended])
    assert not torch.allclose(plain, masked)
    rows = ended.nonzero().flatten()
    log_probs = settings.policy.log_probs(rollouts.sequences(rows)).log_probs
    per_row = (log_probs * with_all.advantages[rows, : log_probs.shape[1]]).sum(-1)
    settings.policy.zero_grad()
    (-(per_row / rollouts.lengths()[rows]).mean()).backward()
    by_hand = torch.cat([p.grad.flatten() for p in parameters(settings)])
    torch.testing.assert_close(masked, by_hand, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant-length"])
def test_dropping_silent_groups_changes_no_gradient(settings, judged, aggregation):
    """They are not fed but still counted; only a KL term would miss them."""
    rollouts, rewards = judged
    given = replace(settings, aggregation=aggregation)
    plain, whole, step = gradient(given, rollouts, rewards)
    iteration = SimpleNamespace(estimator=settings.estimator)
    kept, rewards = SkipSilentGroups()(rollouts, rewards, iteration)
    dropped, _, fewer = gradient(given, kept, rewards)
    fed = sum(len(micro.rows) for micro in fewer.micro_batches)
    signal = int((whole.advantages != 0).any(-1).sum())
    assert 0 < signal <= fed == int((~kept.skipped).sum()) < len(rollouts)
    assert fewer.denominators.tokens == step.denominators.tokens
    assert fewer.denominators.sequences == step.denominators.sequences
    assert plain.norm() > 1e-3
    torch.testing.assert_close(dropped, plain, rtol=1e-5, atol=1e-7)


def test_the_temperature_is_that_of_the_rollouts_and_not_of_the_settings(settings, judged):
    """A callback may change the sampling between drawing and learning."""
    cooler = replace(settings, sampling=SamplingParams(4, temperature=0.3), minibatches=2)
    learner, stats = Learner(cooler), Stats()
    experience = learner.experience(*judged, 0, stats)
    first, second = learner.cut(experience, 0)
    rollouts = judged[0]
    sequences = rollouts.sequences(second.rows)
    for temperature, same in ((1.0, True), (0.3, False)):
        with torch.no_grad():
            expected = cooler.policy.log_probs(sequences, temperature).log_probs
        ours = experience.old_log_probs[second.rows, : expected.shape[1]]
        assert torch.allclose(ours, expected, atol=1e-5) == same
    assert not experience.old_log_probs[first.rows].any()  # its own pass gives them
    for micro in first.micro_batches:
        learner.loss(experience, first, micro, stats, on_policy=True)
    kept, mask = experience.old_log_probs[first.rows], rollouts.mask[first.rows]
    torch.testing.assert_close(kept[mask], rollouts.log_probs[first.rows][mask], atol=1e-5, rtol=0)


def test_control_moves_the_penalty_that_the_loss_takes(settings, judged):
    """loss = surrogate + beta KL: at 0.1, then at 0.1 * 1.2, and again after a resume."""

    def learner():
        rule = AdaptiveKL(target=0.01, horizon=8)
        kl = KLPenalty(0.1, "k2")
        made = Learner(replace(settings, kl=kl, reference="initial", control=[rule]))
        made.reference.build(settings.policy)
        with torch.no_grad():
            for p in made.reference.frozen.parameters():
                p.mul_(1.5)
        return made

    def loss(made):
        stats = Stats()
        experience = made.experience(*judged, 0, stats)
        (step,) = made.cut(experience, 0)
        shares = [made.loss(experience, step, m, stats, on_policy=True) for m in step.micro_batches]
        return float(sum(shares).detach()), stats.means()["policy/kl_ref"]

    one = learner()
    before, divergence = loss(one)
    assert divergence > 0.01
    assert one.adapt({"policy/kl_ref": 9.0}, 8) == {"control/kl_coefficient": 0.1}
    after, _ = loss(one)
    resumed = learner()
    resumed.load_control_state(one.control_state())
    assert loss(resumed)[0] == after
    assert resumed.kl.coefficient == pytest.approx(0.12)
    ones = replace(one.settings, control=(), kl=KLPenalty(0.12, "k2"))
    plain = Learner(ones)
    plain.reference = one.reference
    assert after == pytest.approx(loss(plain)[0], abs=1e-7)
    assert after - before > 1e-4
