"""Runs that are made to collapse by an absurd learning rate, and what the monitor does about it."""

import json

import pytest
import torch
import yaml
from paired_runs import launched
from tiny_runs import configuration, curves_of, fit, reward

from rlzoo.callbacks.collapse import CollapseMonitor

pytestmark = pytest.mark.timeout(120)
QUIET = {
    "trainer.num_sanity_val_steps": 0,
    "trainer.limit_val_batches": 0,
    "data.prompts_per_iteration": 8,
    "model.group_size": 8,
    "checkpoint": {"every_n_iterations": 1, "keep_last": 50},
}
FALLING = QUIET | {  # by the fourth iteration the policy says one thing, and a wrong one
    "model.rewards": [reward("even_first")],
    "model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 100.0}},
    "model.schedule": {"warmup_updates": 10},
    "model.minibatches": 2,
    "model.max_grad_norm": 0.0,
    "trainer.max_epochs": 8,
}
CERTAIN = QUIET | {  # a bandit whose entropy falls to nothing within six iterations
    "model.rewards": [reward("first_b")],
    "model.optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.3}},
    "model.schedule": {"warmup_updates": 12},
    "trainer.max_epochs": 15,
}


def collapse(action, rule, **settings):
    common = {"patience": 2, "warmup_iterations": 2, "snapshot_every_n_iterations": 2}
    rules = [{"class_path": "RewardDrop", "init_args": {"window": 2}}]
    if rule == "entropy":
        rules = [{"class_path": "EntropyRange", "init_args": {"floor": 0.1, "window": 2}}]
    return {"collapse": {"action": action, "rules": rules, **common, **settings}}


def events(run):
    return json.loads((run.folder / "collapse.json").read_text())


def texts(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run.folder))
    accumulator.Reload()
    return [
        e.tensor_proto.string_val[0].decode() for e in accumulator.Tensors("collapse/text_summary")
    ]


def monitor_of(run):
    return next(c for c in run.trainer.callbacks if isinstance(c, CollapseMonitor))


@pytest.fixture(scope="module")
def warned(tmp_path_factory):
    """A run that collapses under the eyes of the monitor."""
    run = fit(tmp_path_factory.mktemp("warned"), FALLING | collapse("warn", "reward"))
    assert run.code == 0, run.err
    return run


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory):
    """The bandit, with two rollbacks; its task is in its folder."""
    folder = tmp_path_factory.mktemp("rolled back")
    rows = [{"prompt": p, "answer": p[0]} for p in ("a", "ab", "abc", "b", "ba", "c", "cb", "ca")]
    path = folder / "letters.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = CERTAIN | {
        "data.task": {
            "class_path": "JsonLines",
            "init_args": {"path": str(path), "eval_path": str(path)},
        },
        "data.train_size": None,
        "data.eval_size": None,
        "model.policy.init_args.characters": "abc",
        "model.sampling.max_new_tokens": 3,
    }
    run = fit(folder, changes | collapse("rollback", "entropy"))
    assert run.code == 0, run.err
    return run, changes


def test_a_warning_says_what_fired_and_the_run_goes_on(warned):
    [event] = events(warned)
    assert (event["iteration"], event["rules"], event["action"]) == (6, ["RewardDrop"], "warn")
    [line] = [line for line in warned.err.splitlines() if line.startswith("collapse at")]
    assert "RewardDrop: reward/mean over 2 iterations fell from 0.859 to 0.125" in line
    assert event["messages"][0] in line
    assert texts(warned) == [line]
    firing = warned.curves()["collapse/rules_firing"]
    assert firing == [(i, float(i >= 4)) for i in range(8)]  # once, however long it lasts
    assert "collapse/lr_scale" not in warned.curves()
    assert json.loads((warned.folder / "summary.json").read_text())["iterations"] == 8
    means = [json.loads(row) for row in (warned.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["collapse/rules_firing"] for row in means] == [value for _, value in firing]


def test_watching_changes_nothing(warned, tmp_path):
    run = fit(tmp_path, FALLING | {"collapse": {"action": "none"}})
    assert run.code == 0, run.err
    assert not (run.folder / "collapse.json").exists()
    assert "collapse/rules_firing" not in run.curves()
    assert all(torch.equal(x, run.weights()[name]) for name, x in warned.weights().items())


def test_the_default_rules_leave_a_short_run_alone(tmp_path):
    run = fit(tmp_path, {"data.train_size": 48})
    assert run.code == 0, run.err
    assert run.curves()["collapse/rules_firing"] == [(i, 0.0) for i in range(12)]
    assert "collapse" not in run.err
    assert not (run.folder / "collapse.json").exists()


def test_stop_ends_the_run_in_order_and_keeps_a_checkpoint_from_before(warned, tmp_path):
    changes = FALLING | {"checkpoint": {"every_n_iterations": 1, "keep_last": 1}}
    run = fit(tmp_path, changes | collapse("stop", "reward"))
    assert run.code == 0, run.err
    last = run.err.splitlines()[-1]
    assert last.startswith("stopped early: collapse at iteration 6, 2 in a row: RewardDrop")
    assert "the run is stopped; the checkpoint before it is" in last
    assert json.loads((run.folder / "summary.json").read_text())["iterations"] == 6
    names = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert names == ["iteration-000004.ckpt", "iteration-000006.ckpt"]
    assert events(run)[0]["checkpoint"].endswith("iteration-000004.ckpt")
    weights = warned.load(6)["state_dict"]
    assert all(torch.equal(x, weights[name]) for name, x in run.load(6)["state_dict"].items())

    two = fit(tmp_path, changes | collapse("stop", "reward"), "--ckpt_path", str(run.checkpoint(6)))
    assert two.code == 0, two.err
    assert [event["iteration"] for event in events(two)] == [6, 8]  # patience starts anew


def test_rollback_puts_everything_back_but_the_rate_and_the_counters(rolled_back):
    run, _ = rolled_back
    one, two = events(run)
    assert (one["iteration"], one["restored_iteration"], one["lr_scale"]) == (7, 2, 0.5)
    assert (two["iteration"], two["lr_scale"], two["action"]) == (13, 0.25, "rollback")
    healthy, back = run.load(2), run.load(7)
    assert all(torch.equal(x, back["state_dict"][k]) for k, x in healthy["state_dict"].items())
    before, after = (load["optimizer_states"][0] for load in (healthy, back))
    assert before["state"].keys() == after["state"].keys() != set()
    for index, moments in before["state"].items():
        assert all(torch.equal(x, after["state"][index][k]) for k, x in moments.items())
    assert after["param_groups"][0]["lr"] == before["param_groups"][0]["lr"] / 2
    schedules = [load["lr_schedulers"][0] for load in (healthy, back)]
    assert schedules[0]["last_epoch"] == schedules[1]["last_epoch"] == 2
    assert schedules[1]["base_lrs"] == [0.15]
    assert back["rlzoo"]["progress"]["iterations"] == 7
    assert back["rlzoo"]["progress"]["updates"] == 7

    curves = run.curves()
    rates = dict(curves["optim/lr"])
    assert rates[7] == pytest.approx(rates[2] / 2)  # the third update again, half as fast
    rewards = dict(curves["reward/mean"])
    assert rewards[7] != rewards[2]  # the same weights, other seeds
    assert dict(curves["collapse/lr_scale"])[5] == 1.0
    assert dict(curves["collapse/lr_scale"])[6] == 0.5
    assert dict(curves["collapse/rollbacks"])[14] == 2.0
    assert run.module.progress["iterations"] == 15
    assert "rollback 1 of 2: weights are back at those after iteration 2" in run.err
    assert len(texts(run)) == 2


def test_a_restored_state_is_not_the_copy_itself(rolled_back):
    """Else the steps after a rollback would change what the next one goes back to."""
    monitor = monitor_of(rolled_back[0])
    snapshot, module = monitor.candidate, rolled_back[0].module
    snapshot.restore(module)
    live = module.trainer.optimizers[0].state_dict()["state"]
    assert live
    for index, moments in snapshot.optimizer["state"].items():
        for name, value in moments.items():
            assert value.data_ptr() != live[index][name].data_ptr()
    for name, p in module.named_parameters():
        if p.requires_grad:
            assert snapshot.weights[name].data_ptr() != p.data_ptr()


def test_the_last_rollback_ends_the_run_with_healthy_weights(tmp_path):
    changes = FALLING | {"trainer.max_epochs": 40}
    run = fit(tmp_path, changes | collapse("rollback", "reward", max_rollbacks=1, lr_factor=1.0))
    assert run.code == 0, run.err
    one, two = events(run)
    assert (one["action"], two["action"]) == ("rollback", "stop")
    done = two["iteration"]
    assert run.module.progress["iterations"] == done < 40
    healthy, last = (run.load(i)["state_dict"] for i in (two["restored_iteration"], done))
    assert all(torch.equal(x, last[name]) for name, x in healthy.items())
    assert run.err.splitlines()[-1].startswith(f"stopped early: collapse at iteration {done}, ")
    assert "after 1 rollbacks the run is stopped" in run.err.splitlines()[-1]


def test_a_warned_run_resumes_where_it_was(warned, tmp_path):
    """Between the first iteration that fires and the one that is one too many."""
    path = str(warned.checkpoint(5).resolve())
    run = fit(tmp_path, FALLING | collapse("warn", "reward"), "--ckpt_path", path)
    assert run.code == 0, run.err
    assert events(run) == events(warned)
    assert monitor_of(run).state_dict() == monitor_of(warned).state_dict()


def test_a_resumed_run_keeps_its_rollbacks_and_rate(rolled_back, tmp_path):
    straight, changes = rolled_back
    path = str(straight.checkpoint(10).resolve())
    run = fit(tmp_path, changes | collapse("rollback", "entropy"), "--ckpt_path", path)
    assert run.code == 0, run.err
    rates, again = (dict(r.curves()["optim/lr"]) for r in (straight, run))
    assert {i: again[i] for i in (10, 11, 12)} == {i: rates[i] for i in (10, 11, 12)}
    one, two = events(run)
    assert one == events(straight)[0]
    assert (two["iteration"], two["restored_iteration"], two["lr_scale"]) == (13, 10, 0.25)
    assert two["messages"] == events(straight)[1]["messages"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patience": 0}, "collapse.patience must be >= 1, got 0"),
        ({"lr_factor": 2.0}, "collapse.lr_factor must be in (0, 1], got 2.0"),
        ({"action": "explode"}, "explode"),
        ({"rules": [{"class_path": "KLAbove", "init_args": {"to": "old"}}]}, "limit"),
        (
            {"rules": [{"class_path": "RewardDrop", "init_args": {"window": 0}}]},
            "RewardDrop: window must be > 0, got 0",
        ),
    ],
)
def test_wrong_settings_are_one_line(tmp_path, settings, said):
    run = fit(tmp_path, {"collapse": settings}, weights=False)
    assert run.code == 2
    assert said in run.err
    assert len(run.err.splitlines()) == 1


@pytest.mark.slow
def test_two_processes_roll_back_together(rolled_back, tmp_path):
    """If one kept its weights, its answers would give the rewards of a policy that is certain."""
    straight, changes = rolled_back
    changes = changes | {"trainer.max_epochs": 8, "trainer.devices": 2, "trainer.strategy": "ddp"}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(configuration(changes | collapse("rollback", "entropy"))))
    code, _, err = launched(tmp_path, "fit", "--config", str(file), timeout=100)
    assert code == 0, err
    [folder] = (tmp_path / "runs" / "tiny").iterdir()
    [event] = json.loads((folder / "collapse.json").read_text())
    assert (event["iteration"], event["restored_iteration"]) == (7, 2)
    assert err.count("collapse at iteration 7") == 1
    for name in ("reward/mean", "optim/lr", "collapse/lr_scale"):
        both, one = (dict(curves) for curves in (curves_of(folder)[name], straight.curves()[name]))
        assert both == {i: pytest.approx(one[i]) for i in range(8)}, name
