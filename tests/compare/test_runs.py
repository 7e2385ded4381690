"""Runs in processes: isolated, resumed bit for bit, never made twice, stopped cleanly."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from tiny_runs import configuration, rlzoo

from rlzoo.cli.commands import compare as typed
from rlzoo.compare import execution
from rlzoo.compare.reporting import report
from rlzoo.compare.running import matrix, progress, run_process, schedule
from rlzoo.display.json_files import append_json_line

pytestmark = pytest.mark.timeout(120)

FAKE = """
import json, os, sys, time
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
logger = json.loads(options["trainer.logger"])["init_args"]
slug = logger["version"]
folder = os.path.join(logger["save_dir"], logger["name"], slug)
does = json.loads(os.environ["DOES"]).get(slug, "")
with open("starts.txt", "a") as file:
    file.write(f"{time.time()} {slug}\\n")
if does == "term":
    print("[rank: 0] Received SIGTERM: 15")
    sys.exit(0)
if does == "raise":
    sys.exit("KeyError: 'units'")
time.sleep(0.4)
with open("begins.txt", "a") as file:
    file.write(f"{time.time()} {slug}\\n")
for iteration in (1, 2):
    with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"iteration": iteration, "reward/mean": 0.25, "tokens/per_s": 9.0}))
        file.write("\\n")
    if does == "hang":
        time.sleep(60)
    if does == "short":
        break
hashes = {"GSPO-seed1": "b"}
summary = {"iterations": iteration, "first_rollouts": hashes.get(slug, "a")}
with open(os.path.join(folder, "summary.json"), "w") as file:
    json.dump(summary, file)
"""
PLUGIN = '''
import os, signal
from pathlib import Path
from rlzoo.algorithms import GRPO

class Raises(GRPO):
    """Fails in its first update."""
    def ratio(self, batch):
        raise KeyError("units")

class Dies(GRPO):
    """Is killed between the two updates of its third iteration, unless told not to."""
    calls = 0
    def ratio(self, batch):
        Dies.calls += 1
        if Dies.calls == 6 and not Path("mended").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().ratio(batch)
'''


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def write(folder, changes=None, **keys):
    base = configuration(
        {
            "model.group_size": 2,
            "model.cold_start": None,
            "checkpoint": {"every_n_iterations": 1},
            "data.train_size": 16,
            **(changes or {}),
        }
    )
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    given = {"base": "base.yaml", "algorithms": ["GRPO", "GSPO"], "output_dir": "out", **keys}
    (folder / "compare.yaml").write_text(yaml.safe_dump(given))


def place(folder, slug):
    return folder / "out" / "runs" / slug


def record(folder, slug):
    return json.loads((place(folder, slug) / "run.json").read_text())


def statuses(folder):
    found = json.loads((folder / "out" / "compare.json").read_text())
    return {run["slug"]: run["status"] for run in found["runs"]}


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and not k.endswith("per_s")}
        for row in found
    ]


def compare(folder, *args):
    return rlzoo(folder, "compare", "--config", "compare.yaml", *args, weights=False)


@pytest.fixture
def reported(monkeypatch):
    """Folders that a report was asked for."""
    asked = []
    monkeypatch.setattr(report, "write_report", lambda path: asked.append(path) or path)
    return asked


@pytest.fixture(scope="module")
def settle():
    """What the command line does with arguments of fit, once for the same ones."""
    known, real = {}, typed.settle

    def call(args):
        key = json.dumps([Path(args[1]).read_text(), args[2:]])
        if key not in known:
            known[key] = real(args)
        return known[key]

    return call


@pytest.fixture
def fake(tmp_path, monkeypatch, reported, settle):
    """Comparisons whose runs are processes that only pretend to train, two iterations each."""
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(run_process, "FIT", (sys.executable, "-S", str(tmp_path / "fake.py")))
    monkeypatch.setattr(typed, "settle", settle)
    write(tmp_path, iterations=2)

    def call(*args, **does):
        monkeypatch.setenv("DOES", json.dumps({k.replace("_", "-"): v for k, v in does.items()}))
        return compare(tmp_path, *args)

    return call


def times(folder, name):
    lines = (folder / name).read_text().splitlines()
    return {slug: float(when) for when, slug in (line.split() for line in lines)}


# with processes that pretend


def test_a_run_that_fails_leaves_the_others_alone(fake, tmp_path, reported):
    run = fake("--seeds", "0,1", GRPO_seed0="raise", GSPO_seed0="short")
    assert run.code == 1
    assert statuses(tmp_path) == {
        "GRPO-seed0": "failed",
        "GSPO-seed0": "failed",
        "GRPO-seed1": "done",
        "GSPO-seed1": "done",
    }
    assert "GRPO-seed0 failed; out/runs/GRPO-seed0/log.txt ends with" in run.out
    assert "  | KeyError: 'units'" in run.out
    assert "2 of 4 runs did not end well" in run.err
    assert record(tmp_path, "GRPO-seed0")["error"] == "KeyError: 'units'"
    assert record(tmp_path, "GRPO-seed0")["returncode"] == 1
    assert record(tmp_path, "GSPO-seed0")["error"] == "ended after 1 of 2 iterations"
    assert reported == [Path("out")]


def test_a_run_that_someone_ends_is_killed_and_not_failed(fake, tmp_path):
    """Lightning makes an exit status of 0 of SIGTERM."""
    run = fake(GRPO_seed0="term")
    assert run.code == 1
    assert statuses(tmp_path) == {"GRPO-seed0": "killed", "GSPO-seed0": "done"}
    assert "  | [rank: 0] Received SIGTERM: 15" in run.out


def test_runs_of_an_earlier_plan_are_told(fake):
    fake("--algorithms", "GSPO")
    assert "1 runs of earlier plans are in out" in fake("--algorithms", "GRPO").out


def test_a_second_call_makes_only_what_is_missing(fake, tmp_path):
    assert fake(GRPO_seed0="raise").code == 1
    before = record(tmp_path, "GSPO-seed0")
    (tmp_path / "starts.txt").unlink()
    assert fake().code == 0
    assert list(times(tmp_path, "starts.txt")) == ["GRPO-seed0"]
    assert record(tmp_path, "GSPO-seed0") == before
    run = fake("--seeds", "0,1")
    assert "2 of 4 runs are done already" in run.out
    assert list(times(tmp_path, "starts.txt")) == ["GRPO-seed0", "GRPO-seed1", "GSPO-seed1"]


def test_lines_say_what_changes(fake):
    said = fake().out.splitlines()
    one = [line for line in said if line.startswith("GRPO-seed0: ")]
    assert "running  iteration 0/2  reward -" in one[0]
    assert one[-1].endswith("done  iteration 2/2  reward 0.250  held-out -  tokens/s 9")
    assert len(one) <= 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_at_a_time(fake, tmp_path, jobs):
    assert fake("--jobs", str(jobs)).code == 0
    starts, begins = times(tmp_path, "starts.txt"), times(tmp_path, "begins.txt")
    together = starts["GSPO-seed0"] < begins["GRPO-seed0"]
    assert together == (jobs == 2)


def test_a_shared_cold_start_is_made_once(fake, tmp_path):
    """The first run of each kind of model begins alone; others of its kind wait for its weights."""
    write(tmp_path, {"model.cold_start": {"class_path": "ColdStart"}}, iterations=2)
    (tmp_path / "other.yaml").write_text(
        (tmp_path / "base.yaml").read_text().replace("hidden_size: 16", "hidden_size: 8")
    )
    run = fake("--jobs", "4", "--axis", "config=base.yaml,other.yaml")
    assert run.code == 0
    starts, begins = times(tmp_path, "starts.txt"), times(tmp_path, "begins.txt")
    assert starts["GSPO-base-seed0"] > begins["GRPO-base-seed0"]
    assert starts["GSPO-other-seed0"] > begins["GRPO-other-seed0"]
    assert starts["GRPO-other-seed0"] < begins["GRPO-base-seed0"]


def test_another_takes_over_where_the_first_fails_before_its_cold_start(fake, tmp_path):
    write(tmp_path, {"model.cold_start": {"class_path": "ColdStart"}}, iterations=2)
    assert fake("--jobs", "2", GRPO_seed0="raise").code == 1
    assert statuses(tmp_path) == {"GRPO-seed0": "failed", "GSPO-seed0": "done"}


def test_first_rollouts_are_compared_within_seed_and_axes(fake, tmp_path):
    """GSPO begins otherwise with seed 1; seeds among each other need not agree."""
    run = fake("--seeds", "0,1", "--jobs", "2")
    check = json.loads((tmp_path / "out" / "compare.json").read_text())["first_rollouts"]
    assert check["identical"] is False
    assert [(g["seed"], g["identical"]) for g in check["groups"]] == [(0, True), (1, False)]
    assert check["groups"][1]["hashes"] == {"GRPO-seed1": "a", "GSPO-seed1": "b"}
    assert "identical in 1 of 2 groups" in run.out
    assert "they differ for seed 1 : GRPO-seed1 a, GSPO-seed1 b" in run.out


def test_one_objective_alone_has_nothing_to_compare(fake, tmp_path):
    fake("--algorithms", "GRPO")
    check = json.loads((tmp_path / "out" / "compare.json").read_text())["first_rollouts"]
    assert check["identical"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_runs_and_marks_them_killed(fake, tmp_path, number):
    def interrupt():
        until = time.monotonic() + 30
        while not (place(tmp_path, "GRPO-seed0") / "metrics.jsonl").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = signal.getsignal(number)
    run = fake(GRPO_seed0="hang")
    thread.join()
    assert run.code == 130
    assert "the same command goes on" in run.err
    assert statuses(tmp_path) == {"GRPO-seed0": "killed", "GSPO-seed0": "planned"}
    assert signal.getsignal(number) == before
    assert fake("--dry_run").out.count("killed") == 1
    assert fake().code == 0


def test_a_run_that_ignores_the_request_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "GRACE", 0.3)
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-Suc", text], start_new_session=True, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    ended = []

    class Stubborn:
        pass

    Stubborn.process, Stubborn.end = process, lambda self, stopped: ended.append(stopped)
    schedule.stop([Stubborn()])
    assert ended == [True]
    assert process.returncode == -signal.SIGKILL


def test_a_folder_in_use_is_refused(fake, tmp_path):
    (tmp_path / "out").mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-Suc", hold, str(tmp_path / "out" / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.readline()
        run = fake()
        holder.communicate(b"\n")
    assert run.code == 2
    assert "output_dir out is in use" in run.err
    assert not (tmp_path / "starts.txt").exists()
    assert fake().code == 0


def test_the_lock_lives_as_long_as_a_run_that_outlives_its_parent(fake, tmp_path):
    """An orphan must not be resumed while it still writes."""
    parent = os.fork()
    if parent == 0:
        fake(GRPO_seed0="hang")
        os._exit(0)
    metrics, until = place(tmp_path, "GRPO-seed0") / "metrics.jsonl", time.monotonic() + 60
    while not metrics.exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    [orphan] = subprocess.check_output(["pgrep", "-P", str(parent)], text=True).split()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        assert "is in use by another comparison or by runs it left behind" in fake().err
    finally:
        os.kill(int(orphan), signal.SIGKILL)
    until = time.monotonic() + 10
    while (run := fake()).code == 2 and time.monotonic() < until:
        time.sleep(0.2)
    assert run.code == 0, run.err
    assert statuses(tmp_path) == {"GRPO-seed0": "done", "GSPO-seed0": "done"}


def test_a_report_alone_takes_in_what_printed_commands_made(fake, tmp_path, reported):
    """Folders without run.json, and those whose parent died, are read by what is in them."""
    place(tmp_path, "GSPO-seed0").mkdir(parents=True)
    (place(tmp_path, "GSPO-seed0") / "summary.json").write_text('{"iterations": 2}')
    run = fake("--report_only")
    assert run.code == 0, run.err
    assert statuses(tmp_path) == {"GRPO-seed0": "planned", "GSPO-seed0": "done"}
    assert record(tmp_path, "GSPO-seed0")["status"] == "done"
    assert not (tmp_path / "starts.txt").exists()
    assert reported == [Path("out")]
    rlzoo(tmp_path, "compare", "--report_only", "--output_dir", "out", weights=False)
    assert len(reported) == 2


# with a real trainer


SETTINGS = {"trainer.val_check_interval": 2, "model.minibatches": 2}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A comparison of which one run was killed in its third iteration, and one raised."""
    folder = tmp_path_factory.mktemp("killed")
    write(folder, SETTINGS, algorithms=["GRPO", "plugin.Dies", "plugin.Raises"], iterations=4)
    (folder / "plugin.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda path: path)
        first = compare(folder, "--jobs", "2")
        after = statuses(folder)
        cut = [row["iteration"] for row in rows(place(folder, "Dies-seed0"))]
        (place(folder, "Dies-seed0") / "metrics.jsonl").open("a").write('{"iteration": 3}\n{"ite')
        planned = compare(folder, "--dry_run").out
        (folder / "mended").touch()
        second = compare(folder, "--algorithms", "GRPO,plugin.Dies")
    return folder, first, after, cut, planned, second


@pytest.mark.slow
def test_a_killed_run_and_one_that_raised_are_told(killed):
    _, first, after, cut, planned, _ = killed
    assert first.code == 1
    assert after == {"GRPO-seed0": "done", "Dies-seed0": "killed", "Raises-seed0": "failed"}
    assert "KeyError: 'units'" in first.out
    assert cut == [0, 1, 2, 2]
    assert "killed, goes on after 2" in planned


@pytest.mark.slow
def test_a_resumed_run_is_the_straight_run(killed):
    """The same figures, each iteration once, as if it had never been killed."""
    folder, _, _, _, _, second = killed
    assert second.code == 0, second.out
    resumed = place(folder, "Dies-seed0")
    assert (resumed / "log.txt").read_text().count("--ckpt_path") == 1
    straight = folder / "straight"
    straight.mkdir()
    args = ["--algorithms", "plugin.Dies", "--output_dir", "straight", "--print_commands"]
    words = shlex.split(compare(folder, *args).out.splitlines()[0])
    run = rlzoo(folder, *words[1:])
    assert run.code == 0, run.err
    assert rows(resumed) == rows(run.folder)
    assert [row["iteration"] for row in rows(resumed) if "reward/mean" in row] == [1, 2, 3, 4]
    assert [row["iteration"] for row in rows(resumed) if "val/accuracy" in row] == [0, 2, 4]
    summaries = [json.loads((f / "summary.json").read_text()) for f in (resumed, run.folder)]
    for key in ("tokens", "updates", "held_out", "first_rollouts", "accuracy_after"):
        assert summaries[0][key] == summaries[1][key], key


@pytest.mark.slow
def test_what_was_done_is_not_made_again(killed):
    folder, _, _, _, _, second = killed
    assert "1 of 2 runs are done already" in second.out
    assert (place(folder, "GRPO-seed0") / "log.txt").read_text().count("rlzoo fit") == 1
    assert set(statuses(folder).values()) == {"done"}


@pytest.mark.slow
def test_objectives_begin_with_the_same_answers(killed):
    folder = killed[0]
    check = json.loads((folder / "out" / "compare.json").read_text())["first_rollouts"]
    assert check["identical"] is True
    assert len(check["groups"][0]["hashes"]) == 2


@pytest.mark.slow
def test_other_settings_in_the_same_folder_are_refused(killed):
    folder = killed[0]
    run = compare(folder, "--override", "model.optimizer.lr=0.5")
    assert run.code == 2
    assert "3 runs in the output_dir were made with other settings, GRPO-seed0 with" in run.err
    assert "model.optimizer.init_args.lr 0.003 -> 0.5" in run.err
    assert "--force" in run.err
    assert compare(folder, "--dry_run").out.count("other settings") == 0


@pytest.mark.slow
def test_force_redoes_what_changed_and_nothing_else(killed, monkeypatch):
    folder, started = killed[0], []
    monkeypatch.setattr(report, "write_report", lambda path: path)

    def execute(all_runs, *rest):
        started.extend(run.cell.slug for run in all_runs if run.status != "done")

    monkeypatch.setattr(execution, "execute", execute)
    args = ["--algorithms", "GRPO,plugin.Dies", "--force"]
    write(folder, SETTINGS, algorithms=["GRPO", "plugin.Dies"], iterations=4)
    assert compare(folder, *args).code == 0
    assert started == []
    given = yaml.safe_load((folder / "compare.yaml").read_text())
    given["algorithms"] = [{"name": "GRPO", "label": "GRPO", "settings": {"clip_low": 0.3}}]
    given["algorithms"] += ["plugin.Dies"]
    (folder / "compare.yaml").write_text(yaml.safe_dump(given))
    assert compare(folder, "--force").code == 1
    assert started == ["GRPO-seed0"]
    assert not (place(folder, "GRPO-seed0") / "summary.json").exists()
    assert (place(folder, "Dies-seed0") / "summary.json").exists()


# checkpoints to go on from


def made(tmp_path, iterations=6, **settings):
    cell = matrix.cells(matrix.build({"base": "b", "algorithms": ["GRPO"]}))[0]
    run = run_process.RunProcess(
        cell,
        [],
        run_process.flat_settings({"trainer": settings}),
        iterations,
        None,
        tmp_path / "run",
    )
    (run.folder / "checkpoints").mkdir(parents=True)
    return run


def checkpoint(run, done, held_out=(0,)):
    path = run.folder / "checkpoints" / f"iteration-{done:06d}.ckpt"
    torch.save({"callbacks": {"Report": {"held_out": [(i, {}) for i in held_out]}}}, path)
    return path


def test_the_newest_checkpoint_that_can_be_read(tmp_path):
    run = made(tmp_path)
    assert run.checkpoint() is None
    checkpoint(run, 2)
    whole = checkpoint(run, 4)
    checkpoint(run, 5).write_bytes(whole.read_bytes()[:300])
    assert run.checkpoint() == (4, whole)


def test_not_the_last_one_since_a_trainer_would_not_start_again(tmp_path):
    run = made(tmp_path, iterations=4)
    checkpoint(run, 4)
    assert run.checkpoint() is None
    checkpoint(run, 3)
    assert run.checkpoint()[0] == 3


@pytest.mark.parametrize(("held_out", "expected"), [((0,), 2), ((0, 3), 3)])
def test_not_one_whose_validation_is_missing(tmp_path, held_out, expected):
    """Going on after it would leave a hole in the held-out curve."""
    run = made(tmp_path, val_check_interval=3)
    checkpoint(run, 2)
    checkpoint(run, 3, held_out)
    assert run.checkpoint()[0] == expected


def test_a_folder_is_brought_to_the_state_of_its_checkpoint(tmp_path):
    run = made(tmp_path, val_check_interval=3)
    kept = checkpoint(run, 2)
    checkpoint(run, 3)
    lines = [{"iteration": i, "reward/mean": i / 8} for i in (1, 2, 3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.folder / "metrics.jsonl").write_text(text + '{"itera')
    assert run.prepare() == ["--ckpt_path", str(kept)]
    assert rows(run.folder) == lines[:2]
    assert list((run.folder / "checkpoints").iterdir()) == [kept]
    assert run.seen == {"iteration": 2, "reward/mean": 0.25}


def test_a_folder_without_a_checkpoint_is_emptied(tmp_path):
    run = made(tmp_path)
    (run.folder / "metrics.jsonl").write_text('{"iteration": 1}\n')
    assert run.prepare() == []
    assert list(run.folder.iterdir()) == []


def test_half_a_line_is_read_when_it_is_whole(tmp_path):
    run = made(tmp_path)
    file = run.folder / "metrics.jsonl"
    file.write_text('{"iteration": 1}\n{"iterat')
    assert (run.read_metrics(), run.seen) == (True, {"iteration": 1})
    assert run.read_metrics() is False
    file.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    assert (run.read_metrics(), run.seen) == (True, {"iteration": 2})


def test_a_reward_that_was_not_a_number_is_shown_as_such(tmp_path):
    run = made(tmp_path)
    append_json_line(run.folder / "metrics.jsonl", {"iteration": 3, "reward/mean": math.nan})
    assert run.read_metrics()
    assert progress.columns(run)[2:4] == ["3/6", "nan"]


def test_settings_that_change_no_figure_are_left_out():
    settings = {"trainer": {"logger": {"a": 1}, "x": None, "y": []}, "ckpt_path": "p", "seed": 1}
    assert run_process.flat_settings(settings) == {"trainer.y": [], "seed": 1}
    assert run_process.flat_settings({"a": [{"b": None, "c": 1}], "d": [2]}) == {
        "a.0.c": 1,
        "d": [2],
    }
