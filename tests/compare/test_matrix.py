"""What a comparison consists of: names, options, budgets, and what is refused."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from tiny_runs import configuration, rlzoo

from rlzoo.compare.running import matrix, run_list
from rlzoo.errors import UserError

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
WIDE = {"name": "GSPO", "label": "GSPO-wide", "settings": {"clip_low": 0.1, "clip_high": 0.1}}


def comparison(**keys):
    return matrix.build({"base": "base.yaml", "algorithms": ["GRPO", WIDE], **keys})


def slugs(**keys):
    return [cell.slug for cell in matrix.cells(comparison(**keys))]


# names


def test_the_matrix_is_every_seed_axis_value_and_objective():
    found = slugs(seeds=[0, 2], axes={"model.optimizer.lr": ["1e-4", 0.001]})
    assert found == [
        f"{name}-lr{lr}-seed{seed}"
        for seed in (0, 2)
        for lr in ("1e-4", "0.001")
        for name in ("GRPO", "GSPO-wide")
    ]


def test_configurations_are_an_axis():
    cells = matrix.cells(comparison(axes={"config": ["configs/quickstart.yaml", "moe.yaml"]}))
    assert [cell.slug for cell in cells][::2] == ["GRPO-quickstart-seed0", "GRPO-moe-seed0"]
    assert [cell.config for cell in cells][::2] == ["configs/quickstart.yaml", "moe.yaml"]
    assert not any(key == "config" for cell in cells for key, _ in cell.options)


def test_axes_that_end_alike_are_told_apart():
    axes = {"model.optimizer.seed": [1], "data.task.seed": [1], "threads": [1]}
    assert slugs(axes=axes)[0] == "GRPO-model.optimizer.seed1-data.task.seed1-threads1-seed0"


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("my_pkg.MyObjective", "MyObjective"),
        ({"name": "GSPO", "settings": {"clip_low": 0.1}}, "GSPO-clip_low0.1"),
        ({"name": "PPO", "overrides": {"model.epochs": 2}}, "PPO-epochs2"),
    ],
)
def test_labels(spec, label):
    assert matrix.build({"base": "b", "algorithms": [spec]}).algorithms[0].label == label


def test_options_of_a_run_act_in_order():
    """What holds for all comes before what holds for one objective, and axes come last."""
    spec = {**WIDE, "overrides": {"model.epochs": 2}}
    given = comparison(
        algorithms=[spec], overrides={"model.epochs": 1}, axes={"model.epochs": [3, 4]}
    )
    options = matrix.cells(given)[1].options
    assert options[0] == ("model.algorithm", "GSPO")
    assert ("model.algorithm.clip_low", 0.1) in options
    assert [v for k, v in options if k == "model.epochs"] == [1, 2, 4]


def test_names_of_the_command_line_stand_for_those_of_the_file():
    assert matrix.chosen(["GSPO-wide", "PPO"], ["GRPO", WIDE]) == [WIDE, "PPO"]
    assert {"GRPO", "GSPO", "CISPO"} <= set(matrix.chosen(["all"], None))


# budgets


def settings(size=40, batch=4, **trainer):
    trainer = {"max_epochs": 1, "max_steps": -1, **trainer}
    return {"trainer": trainer, "data": {"train_size": size, "prompts_per_iteration": batch}}


@pytest.mark.parametrize(
    ("wanted", "given", "options", "iterations"),
    [
        (None, settings(), {}, 10),
        (None, settings(max_epochs=3, limit_train_batches=4), {}, 12),
        (None, settings(limit_train_batches=0.5), {}, 5),
        (None, settings(size=None), {}, None),
        (None, settings(max_steps=7), {}, None),
        (5, settings(), {"max_epochs": 1, "limit_train_batches": 5}, 5),
        (25, settings(), {"max_epochs": 5, "limit_train_batches": 5}, 25),
        (30, settings(val_check_interval=10), {"max_epochs": 3, "limit_train_batches": 10}, 30),
        (15, settings(size=None), {"max_epochs": 1, "limit_train_batches": 15}, 15),
        (
            3,
            settings(val_check_interval=10),
            {"max_epochs": 1, "limit_train_batches": 3, "val_check_interval": 3},
            3,
        ),
    ],
)
def test_every_run_gets_the_wanted_iterations(wanted, given, options, iterations):
    expected = {f"trainer.{key}": value for key, value in options.items()}
    assert run_list.length(wanted, given) == (expected, iterations)


@pytest.mark.parametrize(
    ("wanted", "given", "words"),
    [
        (13, settings(val_check_interval=10), ["iterations 13", "use 10 or 20", "train_size 40"]),
        (None, settings(max_epochs=-1), ["iterations", "no end"]),
    ],
)
def test_a_budget_that_cannot_be(wanted, given, words):
    with pytest.raises(UserError) as refused:
        run_list.length(wanted, given)
    assert all(word in str(refused.value) for word in words), refused.value


# refusals


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithms": []}, ["algorithms", "at least one"]),
        ({"algorithms": ["GRPO", "GRPO"]}, ["'GRPO' is there twice", "label"]),
        ({"algorithms": [{"name": "GSPO", "lable": "x"}]}, ["'lable'", "did you mean 'label'?"]),
        ({"algorithms": [{"label": "x"}]}, ["algorithms", "a mapping with one"]),
        ({"algorithms": [{"name": "GSPO", "label": "a/b"}]}, ["'a/b'", "letters"]),
        ({"seeds": [0, 0]}, ["seeds", "twice"]),
        ({"seeds": ["x"]}, ["seeds", "'x'"]),
        ({"iterations": 0}, ["iterations", ">= 1", "0"]),
        ({"jobs": 0}, ["jobs", ">= 1", "0"]),
        ({"axes": {"model.algorithm": ["GRPO"]}}, ["axes.model.algorithm", "under algorithms"]),
        ({"axes": {"seed_everything": [1]}}, ["seed_everything", "use seeds"]),
        ({"axes": {"model.optimizer.lr": 0.1}}, ["axes.model.optimizer.lr", "list"]),
        ({"axes": {"config": ["a/x.yaml", "b/x.yaml"]}}, ["axes.config", "'x'", "twice"]),
        ({"overrides": {"trainer.logger.name": "x"}}, ["trainer.logger.name", "use output_dir"]),
        ({"overrides": {"config": "x.yaml"}}, ["config", "use base"]),
        ({"base": None}, ["base", "not set"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused(keys, words):
    with pytest.raises(UserError) as refused:
        comparison(**keys)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.fixture
def folder(tmp_path):
    base = configuration({"model.group_size": 2, "model.cold_start": None})
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    given = {"base": "base.yaml", "algorithms": ["GRPO", WIDE], "output_dir": "out"}
    (tmp_path / "compare.yaml").write_text(yaml.safe_dump(given))
    return tmp_path


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--sedes", "1"], ["--sedes", "did you mean '--seeds'?"]),
        (["--seeds", "1,x"], ["--seeds 1,x"]),
        (["--axis", "lr"], ["--axis lr", "KEY=VALUE"]),
        (["--jobs", "two"], ["--jobs", "two", "--help"]),
        (["--algorithms", "GRPO,GSPOO"], ["no class 'GSPOO'", "did you mean 'GSPO'?"]),
        (["--axis", "model.optimizer.lrr=1"], ["lrr", "did you mean"]),
        (["--override", "model.group_sze=2"], ["model.group_sze", "'model.group_size'?"]),
        (["--base", "nowhere.yaml"], ["nowhere.yaml"]),
        (["--config", "nowhere.yaml"], ["--config nowhere.yaml", "No such file"]),
    ],
)
def test_a_wrong_command_line_is_one_line_and_starts_nothing(folder, args, words):
    run = rlzoo(folder, "compare", "--config", "compare.yaml", *args, weights=False)
    assert (run.code, len(run.err.splitlines())) == (2, 1), run.err
    assert all(word in run.err for word in words), run.err
    assert not (folder / "out").exists()


def test_a_setting_that_the_objective_never_reads(folder):
    given = yaml.safe_load((folder / "compare.yaml").read_text())
    given["algorithms"] = [{"name": "CISPO", "settings": {"clip_low": 0.1}}]
    (folder / "compare.yaml").write_text(yaml.safe_dump(given))
    run = rlzoo(folder, "compare", "--config", "compare.yaml", "--dry_run", weights=False)
    assert run.code == 2
    assert "CISPO does not read 'clip_low'; it reads ratio_cap" in run.err


@pytest.mark.parametrize("text", ["algoritms: [GRPO]", "- GRPO", "a: [1"])
def test_a_broken_file_is_named(folder, text):
    (folder / "compare.yaml").write_text(text)
    run = rlzoo(folder, "compare", "--config", "compare.yaml", weights=False)
    assert (run.code, len(run.err.splitlines())) == (2, 1)
    assert "compare.yaml" in run.err
    assert ("did you mean 'algorithms'?" in run.err) == text.startswith("alg")


# plans


def test_a_dry_run_shows_the_plan_and_writes_nothing(folder):
    args = ("--dry_run", "--seeds", "0,1", "--iterations", "2", "--axis", "model.group_size=2,4")
    run = rlzoo(folder, "compare", "--config", "compare.yaml", *args, weights=False)
    assert run.code == 0, run.err
    for words in (
        "GSPO-wide-group_size4-seed1",
        "base: base.yaml",
        "8 runs, 8 to do, 16 iterations to go",
        "model.group_size: 2 (GRPO-group_size2, GSPO-wide-group_size2), 4 (",
        "model.algorithm.init_args.clip_low: 0.2 (GRPO-group_size2, GRPO-group_size4), 0.1 (GSPO",
    ):
        assert words in run.out, words
    differing = [line.split(":")[0].strip() for line in run.out.split("differs")[1].splitlines()]
    assert [key for key in differing if "." in key] == [
        "model.algorithm.class_path",
        "model.algorithm.init_args.clip_high",
        "model.algorithm.init_args.clip_low",
        "model.group_size",
    ]
    assert not (folder / "out").exists()


def test_a_printed_command_is_the_run(folder):
    """A command of the list, alone, fills the folder that the report reads."""
    args = ("--print_commands", "--iterations", "1", "--seeds", "0,3")
    printed = rlzoo(folder, "compare", "--config", "compare.yaml", *args, weights=False)
    lines = printed.out.splitlines()
    assert len(lines) == 4
    assert "report_only" in printed.err
    words = shlex.split(lines[-1])
    assert words[:2] == ["rlzoo", "fit"]
    run = rlzoo(folder, *words[1:])
    assert run.code == 0, run.err
    place = folder / "out" / "runs" / "GSPO-wide-seed3"
    summary = json.loads((place / "summary.json").read_text())
    assert (summary["algorithm"], summary["seed"], summary["iterations"]) == ("GSPO", 3, 1)
    assert run.module.settings.algorithm.clip_high == 0.1
    assert {"metrics.jsonl", "config.yaml", "reward.png", "checkpoints"} <= {
        path.name for path in place.iterdir()
    }


def test_the_shipped_comparison_can_run(tmp_path):
    given = matrix.build(matrix.load(ROOT / "configs" / "compare.yaml"))
    assert [v.label for v in given.algorithms][:3] == ["GRPO", "GSPO", "GSPO-wide"]
    run = rlzoo(
        ROOT,
        *("compare", "--config", "configs/compare.yaml", "--seeds", "0", "--dry_run"),
        *("--output_dir", str(tmp_path)),
        weights=False,
    )
    assert run.code == 0, run.err
    assert f"{len(given.algorithms)} runs" in run.out
    assert f"{40 * len(given.algorithms)} iterations to go" in run.out
