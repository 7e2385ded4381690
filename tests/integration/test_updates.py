"""What happens inside an iteration: modes, ratios, clipping, rates, counts, masks, alignment."""

from dataclasses import replace
from unittest import mock

import pytest
import reward_functions
import torch
from tiny_runs import configuration, fit, reward

from rlzoo.models.base import Policy
from rlzoo.training.module import RLModule

pytestmark = pytest.mark.timeout(60)

SGD = {"model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}}
QUIET = {"trainer.num_sanity_val_steps": 0, "trainer.limit_val_batches": 0}
EVEN = {"model.rewards": [reward("even_first")]}
PPO = {"model.algorithm": "PPO", "model.critic": "SeparateCritic"}


def values(run, tag):
    return [value for _, value in run.curves()[tag]]


def parameters(module):
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


def start_of(module):
    """The policy's weights before training."""
    source = module.policy.source
    return source.weights("float32", module.policy.attention, module.policy.init_seed).state_dict()


class Updates:
    """Records each optimizer step: its rate, how far the weights moved, the counts after it."""

    def __init__(self):
        self.rates, self.moves, self.counts = [], [], []

    @classmethod
    def of(cls, tmp_path, changes):
        self, step = cls(), RLModule.take_step

        def take_step(module, *args, **options):
            optimizer = module.optimizers()
            rates = [group["lr"] for group in optimizer.param_groups]
            before = parameters(module)
            step(module, *args, **options)
            self.rates.append(rates)
            self.moves.append((parameters(module) - before).norm().item())
            self.counts.append((module.trainer.global_step, module.progress["updates"]))

        with mock.patch.object(RLModule, "take_step", take_step):
            self.run = fit(tmp_path, QUIET | changes)
        assert self.run.code == 0, self.run.err
        return self


# counts, rates, clipping


@pytest.mark.parametrize("kind", [{}, PPO], ids=["actor", "actor and critic"])
def test_an_update_is_one_step(tmp_path, kind):
    """LOG-01, BAT-01: epochs * minibatches steps per iteration, whatever the micro-batches."""
    changes = {"model.minibatches": 2, "model.epochs": 3, "model.micro_batch_tokens": 20}
    seen = Updates.of(tmp_path, EVEN | changes | kind)
    assert seen.counts == [(i, i) for i in range(1, 13)]
    assert values(seen.run, "updates") == [6, 12]
    assert seen.run.trainer.global_step == 12
    assert len(seen.run.trainer.optimizers) == 1


def test_rate_is_set_per_update(tmp_path):
    """Warm-up over 3 of 8 updates, then linear to a tenth; the critic's is 3 times the policy's."""
    schedule = {"warmup_updates": 3, "decay": "linear", "final_share": 0.1}
    changes = {"model.schedule": schedule, "model.minibatches": 4}
    seen = Updates.of(tmp_path, EVEN | PPO | changes)
    shares = [1 / 4, 2 / 4, 3 / 4, *(0.1 + 0.9 * (1 - k / 5) for k in range(5))]
    assert [rate for rate, _ in seen.rates] == pytest.approx([0.003 * share for share in shares])
    assert [rate for _, rate in seen.rates] == pytest.approx([0.009 * share for share in shares])
    means = [sum(shares[:4]) / 4, sum(shares[4:]) / 4]
    assert values(seen.run, "optim/lr") == pytest.approx([0.003 * share for share in means])


def test_rate_decays_to_the_last_of_max_steps(tmp_path):
    changes = {"trainer.max_epochs": -1, "trainer.max_steps": 6, "model.minibatches": 2}
    seen = Updates.of(tmp_path, EVEN | changes | {"model.schedule": {"decay": "linear"}})
    assert [rate for (rate,) in seen.rates] == pytest.approx(
        [0.003 * (1 - k / 6) for k in range(6)]
    )
    assert "plan: 3 iterations x 2 updates" in seen.run.err


@pytest.mark.parametrize("limit", [0.01, 0.0, 1000.0])
def test_gradients_are_clipped_to_the_norm(tmp_path, limit):
    """LIT-04: a step of SGD is rate * gradient, so its length shows the norm after clipping."""
    seen = Updates.of(tmp_path, EVEN | SGD | {"model.max_grad_norm": limit})
    norms = values(seen.run, "optim/grad_norm")
    assert min(norms) > 0.02  # the logged norm is the one before clipping
    expected = [0.1 * min(norm, limit or norm) for norm in norms]
    assert seen.moves == pytest.approx(expected, rel=1e-4)


def test_a_gradient_that_is_not_finite_is_skipped(tmp_path):
    (tmp_path / "exploding.py").write_text(
        "from rlzoo.algorithms import Algorithm, Surrogate\n"
        "class Exploding(Algorithm):\n"
        "    def clip(self, ratio, batch):\n"
        "        objective = batch.log_probs * float('inf')\n"
        "        return Surrogate(objective, objective.isnan())\n"
    )
    seen = Updates.of(tmp_path, EVEN | {"model.algorithm": "exploding.Exploding"})
    assert seen.moves == [0.0, 0.0]
    assert values(seen.run, "optim/skipped") == [1.0, 1.0]
    assert seen.run.err.count("update skipped: the gradient norm is") == 2
    assert "optim/grad_norm" not in seen.run.curves()


# modes


def test_modes(tmp_path):
    """LIT-01: training mode in the update, evaluation mode while generating, then as before."""
    training, generating, after = [], [], []
    forward, step, sample = Policy.forward, Policy.step, RLModule.training_step

    def modes(policy):
        return {module.training for module in policy.modules()}

    def seen_forward(policy, *args, **options):
        training.append((torch.is_grad_enabled(), modes(policy)))
        return forward(policy, *args, **options)

    def seen_step(policy, *args, **options):
        generating.append((torch.is_grad_enabled(), modes(policy)))
        return step(policy, *args, **options)

    def seen_training_step(module, *args):
        sample(module, *args)
        after.append(modes(module.policy))

    with (
        mock.patch.object(Policy, "forward", seen_forward),
        mock.patch.object(Policy, "step", seen_step),
        mock.patch.object(RLModule, "training_step", seen_training_step),
    ):
        run = fit(tmp_path, EVEN | {"model.minibatches": 2, "trainer.val_check_interval": 1})
    assert run.code == 0, run.err
    assert all(mode == {True} for _, mode in training)
    assert any(grad for grad, _ in training)
    assert generating
    assert all(state == (False, {False}) for state in generating)
    assert after == [{True}, {True}]


def test_rollouts_can_be_trained_on(tmp_path):
    """LIT-03: validation runs in inference mode, and what training keeps does not."""
    run = fit(tmp_path, EVEN | {"trainer.val_check_interval": 1})
    assert run.code == 0, run.err
    rollouts, rewards = run.module.last_rollouts
    for tensor in (rollouts.token_ids, rollouts.log_probs, rollouts.mask, rewards.totals):
        assert not tensor.is_inference()
    assert not any(p.is_inference() for p in run.module.parameters())


# on-policy


def forwards(tmp_path, changes):
    """Number of scoring passes in each training step."""
    counts, forward, step = [], Policy.forward, RLModule.training_step

    def seen_forward(policy, *args, **options):
        counts[-1] += 1
        return forward(policy, *args, **options)

    def seen_step(module, *args):
        counts.append(0)
        step(module, *args)

    with (
        mock.patch.object(Policy, "forward", seen_forward),
        mock.patch.object(RLModule, "training_step", seen_step),
    ):
        run = fit(tmp_path, QUIET | EVEN | changes)
    assert run.code == 0, run.err
    assert counts.pop(0) == counts[0] + 3  # the self-check of the first iteration
    return run, counts


def test_one_update_needs_one_pass(tmp_path):
    """The weights that sampled are those that train: the ratio is 1 without a second pass."""
    run, counts = forwards(tmp_path, {})
    assert counts == [1]
    for tag, value in {
        "policy/ratio_mean": 1.0,
        "policy/ratio_max": 1.0,
        "policy/log_ratio_abs_max": 0.0,
        "policy/clip_fraction": 0.0,
        "policy/kl_old": 0.0,
    }.items():
        assert values(run, tag) == [value, value], tag
    assert "one update per iteration: the ratio is exactly 1" in run.err
    assert max(abs(v) for v in values(run, "policy/loss")) < 1e-6


def test_only_later_minibatches_are_scored_before(tmp_path):
    run, counts = forwards(tmp_path, {"model.minibatches": 4})
    assert counts == [1 + 4]
    assert min(values(run, "policy/log_ratio_abs_max")) > 0


def test_row_by_row_changes_no_ratio(tmp_path):
    """LP-06: GSPO's narrow band and micro-batches of one row, and still nothing is clipped."""
    changes = {"model.algorithm": "GSPO", "model.micro_batch_tokens": 1}
    run, counts = forwards(tmp_path, changes)
    assert counts == [16]
    assert values(run, "policy/log_ratio_abs_max") == [0.0, 0.0]
    assert values(run, "policy/clip_fraction") == [0.0, 0.0]


def test_second_epoch_sees_another_policy(tmp_path):
    """BAT-01: the second pass comes after an optimizer step; with a rate of 0 it changes nothing."""
    moved = fit(tmp_path, QUIET | EVEN | {"model.epochs": 2})
    assert min(values(moved, "policy/log_ratio_abs_max")) > 1e-4
    still = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.0}}
    run = fit(tmp_path, QUIET | EVEN | {"model.epochs": 2, "model.optimizer": still})
    assert max(values(run, "policy/log_ratio_abs_max")) < 1e-6


@pytest.mark.parametrize(
    "kind",
    [{}, {"model.algorithm": "GSPO", "model.minibatches": 2}, PPO | {"model.minibatches": 2}],
    ids=["GRPO", "GSPO", "PPO"],
)
def test_micro_batches_change_nothing(tmp_path, letters, kind):
    """Theme 1: uneven answers, any cut, the same weights."""
    base = QUIET | letters | SGD | kind | {"model.rewards": [reward("length")]}
    base["model.entropy_coefficient"] = 0.01
    whole = fit(tmp_path, base | {"model.micro_batch_tokens": 100_000})
    small = fit(tmp_path, base | {"model.micro_batch_tokens": 11})
    assert whole.code == small.code == 0
    rows = whole.module.last_rollouts[0].lengths()
    assert rows.min() < rows.max()
    assert (parameters(whole.module) - parameters(small.module)).abs().max() < 1e-6
    start = start_of(whole.module)
    moved = whole.module.policy.causal_lm.state_dict()
    assert max((moved[k] - start[k]).abs().max() for k in start) > 1e-3


# which rows train


def test_nothing_trains_where_no_group_has_a_signal(tmp_path):
    changes = {
        "model.rewards": [reward("constant")],
        "model.filters": [{"class_path": "SkipSilentGroups"}],
    }
    run = fit(tmp_path, QUIET | SGD | changes)
    assert run.code == 0, run.err
    start = start_of(run.module)
    for key, value in run.module.policy.causal_lm.state_dict().items():
        assert torch.equal(value, start[key]), key
    assert values(run, "reward/groups_without_signal") == [1.0, 1.0]


# self-check


def test_self_check_sees_what_is_random(tmp_path):
    plain = Policy.log_probs

    def noisy(policy, *args, **options):
        predicted = plain(policy, *args, **options)
        return replace(predicted, log_probs=predicted.log_probs + 0.01 * torch.randn(()))

    with mock.patch.object(Policy, "log_probs", noisy):
        run = fit(tmp_path, QUIET | EVEN)
    assert run.code == 2
    line = run.err.splitlines()[-1]
    assert "max |ratio - 1| =" in line
    assert "model.self_check_tolerance 0.001" in line
    with mock.patch.object(Policy, "log_probs", noisy):
        loose = fit(tmp_path, QUIET | EVEN | {"model.self_check_tolerance": 1.0})
    assert loose.code == 0, loose.err


def test_dropout_is_not_let_in(tmp_path):
    """LP-07: off whatever the config says; forced on after loading, it is found."""
    key = "model.policy.init_args.config"
    config = configuration()["model"]["policy"]["init_args"]["config"]
    run = fit(tmp_path, QUIET | EVEN | {key: config | {"attention_dropout": 0.5}})
    assert run.code == 0, run.err
    assert "self-check: max |ratio - 1| 0.0e+00" in run.err
    load = Policy.load

    def loaded_with_dropout(policy):
        load(policy)
        for module in policy.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.5

    with (
        mock.patch.object(Policy, "load", loaded_with_dropout),
        pytest.raises(AssertionError, match="dropout or jitter is on"),
    ):
        fit(tmp_path, QUIET | EVEN)


# alignment


def test_rewards_see_their_own_row(tmp_path, letters):
    """REW-07: prompt, answer, column and completion of a row belong together, group by group."""
    changes = {"model.rewards": [reward("record")], "trainer.max_epochs": 2}
    steps, step = [], RLModule.training_step

    def seen(module, batch, batch_idx):
        reward_functions.RECORDED.clear()
        step(module, batch, batch_idx)
        rollouts, rewards = module.last_rollouts
        ids = [
            row[:n] for row, n in zip(rollouts.token_ids.tolist(), rollouts.lengths(), strict=True)
        ]
        texts = [module.policy.decode(row) for row in ids]
        steps.append((list(reward_functions.RECORDED), batch, texts, rewards.totals.tolist()))

    with mock.patch.object(RLModule, "training_step", seen):
        run = fit(tmp_path, QUIET | letters | changes)
    assert run.code == 0, run.err
    assert len(steps) == 4
    orders = []
    for recorded, batch, texts, scores in steps:
        (call,) = recorded
        prompts = [p.text for p in batch.rows for _ in range(4)]
        assert call["prompts"] == prompts
        assert call["answers"] == [prompt[0] for prompt in prompts]
        assert call["tag"] == [f"tag {prompt}" for prompt in prompts]
        assert call["completions"] == texts
        assert call["rows"] == list(range(16))
        assert scores == [len(text) for text in texts]
        orders.append([p.text for p in batch.rows])
    assert sorted(orders[0] + orders[1]) == sorted(orders[2] + orders[3])
    assert orders[0] + orders[1] != orders[2] + orders[3]  # reshuffled for the second pass
