"""A resumed run is the straight run: same prompts, answers, losses, weights, bit for bit."""

import json
from unittest import mock

import pytest
import torch
import yaml
from tiny_runs import configuration, fit, reward, rlzoo

from rlzoo.training.module import RLModule
from rlzoo.training.random_states import collect_rng

pytestmark = pytest.mark.timeout(120)

EIGHT = {
    "trainer.max_epochs": 2,  # of 4 iterations each
    "data.train_size": 16,
    "checkpoint": {"every_n_iterations": 1, "keep_last": 20},
    "model.minibatches": 2,
    "model.schedule": {"warmup_updates": 2, "decay": "cosine"},
}
SETUPS = {
    "grpo": {"model.rewards": [reward("even_first")]},
    "ppo": {"model.algorithm": "PPO", "model.rewards": [reward("lottery")]},
    "shared critic": {
        "model.algorithm": "PPO",
        "model.critic": "SharedCritic",
        "model.rewards": [reward("lottery")],
        "model.epochs": 2,
        "trainer.val_check_interval": 2,
    },
    "bfloat16": {
        "model.policy.init_args.dtype": "bfloat16",
        "model.cold_start": {"class_path": "ColdStart", "init_args": {"steps": 2}},
        "model.rewards": [reward("even_first")],
    },
    "reference": {
        "model.reference": "initial",
        "model.kl": {"coefficient": 0.1},
        "model.rewards": [reward("lottery")],
    },
}


class Seen:
    """What went through the training steps of a run."""

    def __init__(self):
        self.steps, self.rng = [], None

    def record(self, *args, **options):
        step, end = RLModule.training_step, RLModule.on_train_epoch_end

        def training_step(module, batch, batch_idx):
            step(module, batch, batch_idx)
            rollouts, rewards = module.last_rollouts
            prompts = [(p, row.text) for p, row in zip(batch.positions, batch.rows, strict=True)]
            self.steps.append((prompts, rollouts.token_ids.tolist(), rewards.totals.tolist()))

        def on_train_epoch_end(module):
            end(module)
            self.rng = collect_rng()

        with (
            mock.patch.object(RLModule, "training_step", training_step),
            mock.patch.object(RLModule, "on_train_epoch_end", on_train_epoch_end),
        ):
            self.run = fit(*args, **options)
        assert self.run.code == 0, self.run.err
        return self


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Runs of eight iterations, each made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = Seen().record(tmp_path_factory.mktemp("straight"), EIGHT | SETUPS[name])
        return made[name]

    return get


def optimizer_state(run):
    state = run.trainer.optimizers[0].state_dict()
    return state["param_groups"], state["state"]


@pytest.mark.parametrize("done", [3, 4])
@pytest.mark.parametrize("name", SETUPS)
def test_resume_is_bit_exact(straight, tmp_path, name, done):
    """RES-00, in the middle of an epoch and at its end, where a validation is due too (RES-01)."""
    one = straight(name)
    path = str(one.run.checkpoint(done).resolve())
    two = Seen().record(tmp_path, EIGHT | SETUPS[name], "--ckpt_path", path)

    assert len(one.steps) == 8
    assert two.steps == one.steps[done:]
    for (tag, a), (_, b) in zip(
        sorted(one.run.curves().items()), sorted(two.run.curves().items()), strict=True
    ):
        if not tag.startswith(("time/", "tokens/per_s", "tokens/sampled_per_s")):
            assert b == [point for point in a if point[0] >= done or point == b[0]], tag
    weights = two.run.weights()
    assert weights.keys() == one.run.weights().keys()
    for key, value in one.run.weights().items():
        assert torch.equal(value, weights[key]), key
    groups, state = optimizer_state(one.run)
    groups_again, state_again = optimizer_state(two.run)
    assert groups_again == groups
    assert state.keys() == state_again.keys()
    for i, moments in state.items():
        for key, value in moments.items():
            assert torch.equal(value, state_again[i][key])
    assert two.rng["python"] == one.rng["python"]
    assert two.rng["numpy"] == one.rng["numpy"]
    assert torch.equal(two.rng["torch"], one.rng["torch"])
    assert two.run.module.progress["updates"] == one.run.module.progress["updates"]
    assert two.run.trainer.global_step == one.run.trainer.global_step
    assert "not resumable" not in two.run.err


def test_each_state_matters(straight, tmp_path):
    """The comparison sees it when a random state is not put back."""
    one = straight("ppo")
    with mock.patch("rlzoo.training.module.restore_rng"):
        path = str(one.run.checkpoint(4).resolve())
        two = Seen().record(tmp_path, EIGHT | SETUPS["ppo"], "--ckpt_path", path)
    assert two.steps[0][1] == one.steps[4][1]  # answers are keyed by their seed
    assert [s[2] for s in two.steps] != [s[2] for s in one.steps[4:]]


def test_the_reference_is_rebuilt_from_its_source(straight, tmp_path):
    """It is the policy before training, not the one in the checkpoint."""
    one = straight("reference")
    path = str(one.run.checkpoint(4).resolve())
    two = fit(tmp_path, EIGHT | SETUPS["reference"], "--ckpt_path", path)
    first = one.run.module.learner.reference._frozen.state_dict()
    again = two.module.learner.reference._frozen.state_dict()
    trained = two.module.policy.state_dict()
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(trained[k], again[k]) for k in again)


def test_curves_go_on_in_the_summary(straight, tmp_path):
    one = straight("shared critic")
    path = str(one.run.checkpoint(4).resolve())
    two = fit(tmp_path, EIGHT | SETUPS["shared critic"], "--ckpt_path", path)
    whole, again = (json.loads((run.folder / "summary.json").read_text()) for run in (one.run, two))
    assert [point["iteration"] for point in whole["held_out"]] == [0, 2, 4, 6, 8]
    for key in ("held_out", "accuracy_before", "accuracy_after", "iterations", "updates", "tokens"):
        assert again[key] == whole[key], key
    report = next(c for c in two.trainer.callbacks if type(c).__name__ == "Report")
    assert [i for i, _ in report.rewards] == list(range(1, 9))
    assert two.folder != one.run.folder


def test_nothing_is_left_to_do(straight, tmp_path):
    """RES-01: it says so, exits 0, and changes nothing."""
    one = straight("grpo")
    path = str(one.run.checkpoint(8).resolve())
    two = Seen().record(tmp_path, EIGHT | SETUPS["grpo"], "--ckpt_path", path)
    assert two.steps == []
    assert "resumed: 8 iterations are done already" in two.run.err
    assert "nothing is left to do; raise trainer.max_epochs to go on" in two.run.err
    assert all(torch.equal(v, two.run.weights()[k]) for k, v in one.run.weights().items())
    assert "nothing is left" not in one.run.err


def test_more_epochs_go_on_where_the_last_run_ended(straight, tmp_path):
    one = straight("grpo")
    longer = EIGHT | SETUPS["grpo"] | {"trainer.max_epochs": 3}
    path = str(one.run.checkpoint(8).resolve())
    two = Seen().record(tmp_path, longer, "--ckpt_path", path)
    assert len(two.steps) == 4
    assert two.run.module.progress["iterations"] == 12
    assert [step for step, _ in two.run.curves()["reward/mean"]] == [8, 9, 10, 11]


def test_a_missing_checkpoint_is_not_a_fresh_start(tmp_path):
    """RES-02."""
    run = fit(tmp_path, EIGHT, "--ckpt_path", "gone.ckpt", weights=False)
    assert (run.code, len(run.err.splitlines())) == (2, 1)
    assert "'gone.ckpt' does not exist" in run.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("every", "keep", "kept"), [(1, 2, [7, 8]), (3, 2, [6, 8]), (3, 5, [3, 6, 8]), (0, 1, [8])]
)
def test_the_newest_checkpoints_are_kept(tmp_path, every, keep, kept):
    changes = {"checkpoint": {"every_n_iterations": every, "keep_last": keep}}
    run = fit(tmp_path, EIGHT | changes)
    names = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert names == [f"iteration-{i:06d}.ckpt" for i in kept]


def test_a_resumed_run_keeps_its_share_and_leaves_the_other_alone(tmp_path):
    changes = EIGHT | {"checkpoint": {"every_n_iterations": 1, "keep_last": 2}}
    one = fit(tmp_path, changes | {"trainer.max_epochs": 1})
    two = fit(tmp_path, changes, "--ckpt_path", str(one.checkpoint(4)))
    assert sorted(p.name[-7:-5] for p in (one.folder / "checkpoints").iterdir()) == ["03", "04"]
    assert sorted(p.name[-7:-5] for p in (two.folder / "checkpoints").iterdir()) == ["07", "08"]


def test_a_folder_shared_by_both_runs_keeps_its_share(tmp_path):
    changes = EIGHT | {"checkpoint": {"keep_last": 2, "every_n_iterations": 1, "dirpath": "kept"}}
    fit(tmp_path, changes | {"trainer.max_epochs": 1})
    fit(tmp_path, changes, "--ckpt_path", "kept/iteration-000004.ckpt")
    assert sorted(p.name[-7:-5] for p in (tmp_path / "kept").iterdir()) == ["07", "08"]


def test_validate_reads_a_checkpoint(straight, tmp_path):
    """The figures of a checkpoint are those of the run that wrote it."""
    one = straight("grpo")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(configuration(EIGHT | SETUPS["grpo"])))
    path = str(one.run.checkpoint(8).resolve())
    run = rlzoo(tmp_path, "validate", "--config", str(file), "--ckpt_path", path)
    assert run.code == 0, run.err
    for key, value in one.run.trainer.callback_metrics.items():
        if key.startswith("val/"):
            assert run.trainer.callback_metrics[key] == value, key
