"""Estimators, corrections and control as the command line takes them, in runs of a tiny policy."""

import json
from unittest import mock

import pytest
import torch
from tiny_runs import fit, reward, rlzoo

from rlzoo.advantages import ESTIMATORS
from rlzoo.algorithms import GRPO
from rlzoo.training.module import RLModule
from rlzoo.types.stats import Stats

pytestmark = pytest.mark.timeout(120)

QUIET = {
    "trainer.num_sanity_val_steps": 0,
    "trainer.limit_val_batches": 0,
    "model.rewards": [reward("even_first")],
}
SHORT = QUIET | {"data.train_size": 4}
NAMES = {cls.__name__: name for name, cls in ESTIMATORS.items()}


def values(run, tag):
    return [value for _, value in run.curves()[tag]]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_estimator_trains_from_the_command_line(tmp_path, name):
    more = ["--model.advantage.init_args.k", "2"] if name == "PassAtKAdvantage" else []
    run = fit(tmp_path, SHORT, "--model.advantage", name, *more)
    assert run.code == 0, run.err
    assert type(run.module.settings.estimator).__name__ == name
    assert f"advantage {name}" in run.err
    assert values(run, "policy/advantage_abs")[0] > 0


def test_rewards_reach_gdpo_one_by_one(tmp_path):
    """Two rewards that weigh each other out: no group has a signal by their sum."""
    rewards = [reward("even_first", weight=1.0), reward("even_first", weight=-1.0, name="against")]
    silent = {}
    for name in ("GroupNormalized", "GDPO"):
        run = fit(tmp_path, SHORT | {"model.rewards": rewards}, "--model.advantage", name)
        assert run.code == 0, run.err
        _, earned = run.module.last_rollouts
        assert earned.weights == (1.0, -1.0)
        assert earned.components().shape == (16, 2)
        silent[name] = values(run, "reward/groups_without_signal")[0]
    assert silent["GroupNormalized"] == 1 > silent["GDPO"]


def test_corrections_and_control_are_logged_and_said(tmp_path):
    run = fit(
        tmp_path,
        QUIET | {"model.reference": "initial", "model.kl.coefficient": 0.1},
        *("--model.corrections", "[{class_path: TruncatedIS, init_args: {level: geometric}},"
          " {class_path: TopEntropyMask}]"),
        *("--model.control", "[{class_path: AdaptiveKL, init_args: {target: 0.01, horizon: 32}},"
          " {class_path: AdaptiveEntropy, init_args: {target: 9.0}}]"),
    )  # fmt: skip
    assert run.code == 0, run.err
    assert (
        "corrections: TruncatedIS(level=geometric, cap=1.1), TopEntropyMask(share=0.2)" in run.err
    )
    assert "control: AdaptiveKL(target=0.01, horizon=32" in run.err
    assert "AdaptiveEntropy(target=9.0, step=0.005)" in run.err
    assert all(0 < v < 1 for v in values(run, "correction/weight_mean"))
    shares = zip(values(run, "correction/ess"), values(run, "correction/rejected"), strict=True)
    assert all(ess == pytest.approx(1 - rejected, abs=1e-4) for ess, rejected in shares)
    assert all(0 <= v < 1e-6 for v in values(run, "policy/mismatch_kl"))
    # The first iteration uses what is configured; its KL is 0, so the second uses .1 * .9.
    assert values(run, "control/kl_coefficient") == pytest.approx([0.1, 0.09])
    assert values(run, "control/entropy_coefficient") == pytest.approx([0.0, 0.005])
    assert run.module.learner.kl.coefficient != pytest.approx(0.09)
    saved = run.load(2)["rlzoo"]["control"]
    assert saved == run.module.learner.control_state()
    assert saved["entropy"] == {"coefficient": pytest.approx(0.01), "acts": 1.0}


def test_entropy_is_measured_where_only_its_control_asks_for_it(tmp_path):
    run = fit(tmp_path, QUIET, "--model.control", "[{class_path: AdaptiveEntropy}]")
    assert run.code == 0, run.err
    entropy = values(run, "policy/entropy")
    assert len(entropy) == 2
    assert min(entropy) > 0.2  # above the target, so the bonus never acts
    assert values(run, "control/entropy_coefficient") == [0.0, 0.0]


def test_a_cut_answer_that_does_not_train_still_weighs_by_its_length(tmp_path):
    """OPO's baseline is over answers as sampled, whatever MaskTruncated takes out of the loss."""
    run = fit(
        tmp_path,
        SHORT | {"model.filters": [{"class_path": "MaskTruncated"}]},
        "--model.advantage",
        "OPO",
    )
    assert run.code == 0, run.err
    rollouts, rewards = run.module.last_rollouts
    ended = rollouts.terminated
    assert 0 < ended.sum() < len(ended)
    made = run.module.learner.experience(rollouts, rewards, 0, Stats())
    lengths = rollouts.lengths().view(4, 4).double()
    rewards = rewards.totals.view(4, 4).double()
    baseline = (lengths * rewards).sum(-1, keepdim=True) / lengths.sum(-1, keepdim=True)
    live = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    expected = torch.where(live, rewards - baseline, 0.0).flatten()
    torch.testing.assert_close(made.advantages[ended, 0].double(), expected[ended])
    assert (made.advantages[ended, 0] != 0).any()


def test_a_sampler_that_agrees_leaves_the_run_as_it_is(tmp_path):
    """On the CPU the native sampler is the trainer up to rounding, and the weights follow it."""
    plain = fit(tmp_path, SHORT)
    corrected = fit(tmp_path, SHORT, "--model.corrections", "[{class_path: MaskedIS}]")
    for (name, ours), theirs in zip(
        corrected.weights().items(), plain.weights().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)
    assert values(corrected, "correction/weight_mean") == pytest.approx([1.0], abs=1e-4)


def test_a_sampler_that_is_off_is_seen_and_rejected(tmp_path):
    """Log-probabilities reported 1 nat too high: w = 1/e on every token, below the band."""
    step = RLModule.training_step

    def off(module, batch, batch_idx):
        sample = module.settings.sampler.sample

        def shifted(*args):
            rollouts = sample(*args)
            rollouts.log_probs[rollouts.mask] += 1.0
            return rollouts

        with mock.patch.object(module.settings.sampler, "sample", shifted):
            step(module, batch, batch_idx)

    settings = SHORT | {"model.corrections": [{"class_path": "MaskedIS"}]}
    with mock.patch.object(RLModule, "training_step", off):
        run = fit(tmp_path, settings)
    assert run.code == 0, run.err
    assert values(run, "correction/rejected") == [1.0]
    assert values(run, "correction/ess") == [0.0]
    assert values(run, "policy/mismatch_kl_k1") == pytest.approx([1.0], abs=1e-4)
    assert values(run, "policy/mismatch_kl") == pytest.approx([0.36788], abs=1e-4)
    assert values(run, "optim/grad_norm") == [0.0]


def test_control_goes_on_after_a_resume_bit_for_bit(tmp_path):
    settings = {
        **QUIET,
        "trainer.max_epochs": 2,
        "checkpoint": {"every_n_iterations": 1, "keep_last": 20},
        "model.reference": "initial",
        "model.kl.coefficient": 0.1,
        "model.minibatches": 2,
        "model.control": [
            {"class_path": "AdaptiveKL", "init_args": {"target": 0.01, "horizon": 32}},
            {"class_path": "AdaptiveEntropy", "init_args": {"target": 9.0}},
        ],
    }
    straight = fit(tmp_path, settings)
    assert straight.code == 0, straight.err
    resumed = rlzoo(
        tmp_path,
        *("fit", "--config", str(tmp_path / "config.yaml")),
        *("--ckpt_path", str(straight.checkpoint(2))),
    )
    assert resumed.code == 0, resumed.err
    state = straight.module.learner.control_state()
    assert resumed.module.learner.control_state() == state
    assert state["kl"]["coefficient"] != 0.1
    for name, value in straight.weights().items():
        assert torch.equal(resumed.weights()[name], value), name


class OnePerAnswer(GRPO):
    one_advantage_per_answer = True


REFUSED = [
    (["--model.advantage", "PassAtKAdvantage"], {}, ["group_size 4", "at least 5"]),
    (
        ["--model.advantage", "ReinforcePP", "--model.algorithm", f"{__name__}.OnePerAnswer"],
        {},
        ["ReinforcePP gives every token its own", "OnePerAnswer", "GSPOToken"],
    ),
    (
        ["--model.advantage", "GAE", "--model.algorithm", f"{__name__}.OnePerAnswer"],
        {},
        ["GAE gives every token its own", "OnePerAnswer", "GSPOToken"],
    ),
    (
        ["--model.advantage", "GDPO"],
        {
            "model.reference": "initial",
            "model.kl": {"coefficient": 0.1, "placement": "reward"},
        },
        ["model.kl.placement reward", "GDPO", "set model.kl.placement to loss"],
    ),
    (
        ["--model.advantage", "ReinforcePP", "--model.filters+=SkipSilentGroups"],
        {},
        ["model.filters SkipSilentGroups", "ReinforcePP", "remove it"],
    ),
    (
        ["--model.corrections", "[{class_path: TruncatedIS}, {class_path: MaskedIS}]"],
        {},
        ["TruncatedIS and MaskedIS", "keep one"],
    ),
    (
        ["--model.control", "[{class_path: AdaptiveKL, init_args: {target: 0.1}}]"],
        {},
        ["AdaptiveKL multiplies model.kl.coefficient, which is 0.0"],
    ),
    (
        ["--model.control", "[{class_path: AdaptiveEntropy}]", "--model.filters+=SkipSilentGroups"],
        {},
        ["model.filters SkipSilentGroups", "entropy"],
    ),
]


@pytest.mark.parametrize(("options", "changes", "parts"), REFUSED)
def test_pairs_that_mean_nothing_are_refused_in_one_line(tmp_path, options, changes, parts):
    run = fit(tmp_path, QUIET | changes, *options, weights=False)
    assert run.code == 2, run.err
    [line] = run.err.splitlines()
    assert all(part in line for part in parts), line


def test_what_is_chosen_survives_print_config(tmp_path):
    chosen = ["--model.corrections", json.dumps([{"class_path": "MaskedIS"}])]
    run = fit(tmp_path, QUIET, *chosen, "--print_config", weights=False)
    assert run.code == 0, run.err
    assert "rlzoo.MaskedIS" in run.out
    assert "level: token" in run.out
