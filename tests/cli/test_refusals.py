"""What cannot work is refused before weights load: status 2, one line, a name and a remedy."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from tiny_runs import REMOVE, configuration, fit, jsonl, reward, rlzoo

from rlzoo.errors import UserError
from rlzoo.strategies import FSDP2Strategy
from rlzoo.training.checks import check_trainer

pytestmark = pytest.mark.timeout(60)


def deepspeed(**options):
    """The change that chooses DeepSpeed."""
    name = "rlzoo.strategies.DeepSpeedExpertParallelStrategy"
    return {"trainer.strategy": {"class_path": name, "init_args": options}}


def says(line, *parts):
    for part in parts:
        assert part in line, line


# keys and names: CFG-00


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("sed_everything", "seed_everything"),
        ("modle.group_size", "model.group_size"),
        ("model.group_sze", "model.group_size"),
        ("model.sampling.temprature", "model.sampling.temperature"),
        ("model.samplng.temperature", "model.sampling.temperature"),
        ("data.prompt_per_iteration", "data.prompts_per_iteration"),
        ("trainer.max_epoch", "trainer.max_epochs"),
        ("checkpoint.keep_lst", "checkpoint.keep_last"),
    ],
)
def test_misspelt_option(refused, key, suggestion):
    says(refused(None, f"--{key}", "1"), f"--{key}", f"did you mean '{suggestion}'?")


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("model.group_sze", "model.group_size"),
        ("model.sampling.temprature", "model.sampling.temperature"),
        ("data.prompt_per_iteration", "data.prompts_per_iteration"),
        ("trainer.max_epoch", "trainer.max_epochs"),
        ("sed_everything", "seed_everything"),
    ],
)
def test_misspelt_key_in_a_file(refused, key, suggestion):
    says(refused({key: 1}), f"{key}:", f"did you mean '{suggestion}'?")


def test_misspelt_section(refused):
    says(refused({"modell.group_size": 1}), "modell.group_size", "did you mean 'model.group_size'?")


@pytest.mark.parametrize(
    ("key", "option", "suggestion"),
    [
        ("model.policy", "charcters", "characters"),
        ("model.optimizer", "lrr", "lr"),
        ("data.task", "max_digit", "max_digits"),
    ],
)
@pytest.mark.parametrize("how", ["file", "command line"])
def test_misspelt_setting_of_a_class(refused, key, option, suggestion, how):
    if how == "file":
        line = refused({f"{key}.init_args.{option}": 1})
    else:
        line = refused(None, f"--{key}.init_args.{option}", "1")
    says(line, key, f"'{option}'", f"did you mean '{suggestion}'?")


def test_misspelt_setting_that_a_base_class_reads(refused):
    line = refused({"model.rewards": [{"class_path": "ExactMatch", "init_args": {"wieght": 2}}]})
    says(line, "ExactMatch does not read 'wieght'", "did you mean 'weight'?", "timeout")


@pytest.mark.parametrize("how", ["file", "command line"])
def test_setting_that_the_objective_never_reads(refused, how):
    if how == "file":
        spec = {"class_path": "CISPO", "init_args": {"clip_low": 0.2}}
        line = refused({"model.algorithm": spec})
    else:
        line = refused(None, "--model.algorithm", "CISPO", "--model.algorithm.clip_low", "0.2")
    says(line, "CISPO does not read 'clip_low'", "it reads ratio_cap")


@pytest.mark.parametrize(
    ("key", "name", "suggestion"),
    [
        ("model.algorithm", "GPRO", "GRPO"),
        ("model.algorithm", "GSPOO", "GSPO"),
        ("model.policy", "DensPolicy", "DensePolicy"),
        ("data.task", "DigitSortin", "DigitSorting"),
    ],
)
def test_unknown_class(refused, key, name, suggestion):
    says(refused(None, f"--{key}", name), f"no class '{name}'", f"did you mean '{suggestion}'?")


def test_unknown_class_in_a_file(refused):
    line = refused({"model.rewards": [{"class_path": "ExctMatch"}]})
    says(line, "model.rewards", "no class 'ExctMatch'", "did you mean 'ExactMatch'?")


@pytest.mark.parametrize("option", ["--trainer.max_epoch", "--model.group", "--model.sampl.top_k"])
def test_an_abbreviated_option_is_not_guessed(refused, option):
    says(refused(None, option, "1"), f"{option}: no such option")


def test_value_of_the_wrong_type(refused):
    says(refused({"model.group_size": "many"}), "model.group_size", "many", "int")


def test_missing_parts(refused):
    line = refused({"data.task": REMOVE, "model.rewards": REMOVE})
    says(line, "model.rewards, data.task: not set", "--config")


def test_bad_syntax_names_the_file(command, tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(yaml.safe_dump(configuration()))
    bad.write_text("model: {a: [1\n b: 2")
    run = command("fit", "--config", str(good), "--config", str(bad))
    assert run.code == 2
    assert len(run.err.splitlines()) == 1
    says(run.err, str(bad), "line 2, column 3")


def test_configuration_file_is_missing(command):
    run = command("fit", "--config", "nowhere.yaml")
    assert (run.code, len(run.err.splitlines())) == (2, 1)
    says(run.err, "nowhere.yaml", "does not exist")


@pytest.mark.parametrize(("name", "suggestion"), [("fti", "fit"), ("exprot", "export")])
def test_unknown_command(command, name, suggestion):
    run = command(name)
    assert (run.code, len(run.err.splitlines())) == (2, 1)
    says(run.err, f"no command '{name}'", f"did you mean '{suggestion}'?")


# settings that cannot act


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model.group_size": 1}, ["model.group_size 1", "at least 2", "GAE"]),
        ({"model.group_size": 0}, ["model.group_size", ">= 1", "0"]),
        ({"model.sampling.temperature": 0.0}, ["temperature 0.0", "must be > 0 for rollouts"]),
        ({"model.sampling.top_p": 0.0}, ["top_p is 0.0", "above 0"]),
        ({"model.sampling.max_new_tokens": 0}, ["max_new_tokens is 0", "at least 1"]),
        (
            {"model.sampling.max_new_tokens": 100},
            ["max_new_tokens 100", "32 positions", "lower max_new_tokens"],
        ),
        ({"model.kl.coefficient": 0.1}, ["model.kl.coefficient 0.1", "model.reference", "initial"]),
        ({"model.reference": "nowhere"}, ["model.reference 'nowhere'", "initial", "folder"]),
        ({"model.reference": "adapter_base"}, ["adapter_base", "model.policy.lora", "initial"]),
        ({"model.critic": "SeparateCritic"}, ["model.critic", "GroupNormalized", "GAE"]),
        (
            {"model.algorithm": "PPO", "model.filters": [{"class_path": "SkipSilentGroups"}]},
            ["model.filters SkipSilentGroups", "critic"],
        ),
        (
            {"model.evaluation.accuracy": "exact"},
            ["evaluation.accuracy 'exact'", "exact_match"],
        ),
        ({"model.max_grad_norm": -1.0}, ["model.max_grad_norm", ">= 0", "-1.0"]),
        ({"model.schedule": {"final_share": 0.1}}, ["final_share 0.1", "decay=linear"]),
        ({"trainer.precision": "16-mixed"}, ["trainer.precision 16-mixed", "bf16-mixed"]),
        ({"trainer.precision": "bf16-true"}, ["trainer.precision bf16-true", "model.policy.dtype"]),
        ({"model.policy.init_args.layout": "packed"}, ["layout", "packed", "auto"]),
        ({"trainer.gradient_clip_val": 0.5}, ["gradient_clip_val 0.5", "model.max_grad_norm"]),
        (
            {"trainer.accumulate_grad_batches": 2},
            ["accumulate_grad_batches 2", "model.micro_batch_tokens"],
        ),
        (
            {"trainer.val_check_interval": 10},
            ["val_check_interval 10", "2 iterations", "check_val_every_n_epoch"],
        ),
        (
            {"trainer.val_check_interval": 2, "trainer.limit_train_batches": 1},
            ["val_check_interval 2", "1 iterations", "check_val_every_n_epoch"],
        ),
        (
            {"trainer.val_check_interval": 2, "trainer.limit_train_batches": 0.5},
            ["val_check_interval 2", "1 iterations", "check_val_every_n_epoch"],
        ),
        ({"trainer.strategy": "fsdp"}, ["trainer.strategy fsdp is not driven", "fsdp2"]),
        (
            {"trainer.strategy": "deepspeed_stage_2"},
            ["deepspeed_stage_2", "neither clip", "DeepSpeedExpertParallelStrategy"],
        ),
        (deepspeed(zero_stage=0), ["zero_stage", "0"]),
        (deepspeed(ep_size=0), ["ep_size must be >= 1", "0"]),
        (deepspeed(ep_size=2), ["ep_size 2", "0 experts", "or 1"]),
        (deepspeed(offload_parameters=True), ["offload_parameters", "zero_stage 2", "3"]),
        (deepspeed(autoep={"top_k": 1}), ["autoep has no effect", "ep_size 1"]),
        (
            deepspeed(config={"gradient_clipping": 1.0}),
            ["config.gradient_clipping", "model.max_grad_norm"],
        ),
        (
            {**deepspeed(), "trainer.precision": "bf16-mixed"},
            ["trainer.precision bf16-mixed", "model.policy.dtype"],
        ),
        ({"data.train_size": 3}, ["3 training prompts", "prompts_per_iteration 4"]),
        ({"model.rewards": []}, ["rewards", "at least one"]),
        ({"model.rewards": [reward("first_bb")]}, ["'first_bb'", "did you mean 'first_b'?"]),
        ({"ckpt_path": "nowhere.ckpt"}, ["ckpt_path 'nowhere.ckpt'", "does not exist"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else "",
)
def test_setting_that_cannot_act(refused, changes, parts):
    says(refused(changes), *parts)


def test_weights_that_fsdp2_would_round():
    trainer = SimpleNamespace(precision="32-true", precision_plugin=None, strategy=FSDP2Strategy())
    settings = SimpleNamespace(policy=SimpleNamespace(dtype="bfloat16"))
    with pytest.raises(UserError, match=r"model\.policy\.dtype bfloat16.*fsdp2.*bf16-mixed"):
        check_trainer(settings, trainer)


@pytest.mark.parametrize(("minibatches", "near"), [(5, "2 or 4"), (3, "2 or 4"), (32, "8 or 16")])
def test_minibatches_that_do_not_divide(refused, minibatches, near):
    """BAT-02: the rule with its numbers, and two settings near the one given."""
    line = refused({"model.minibatches": minibatches})
    says(line, f"model.minibatches {minibatches}", "4 * 4 = 16", f"use {near}")


def test_bad_checkpoint(refused, tmp_path):
    import torch

    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.4"}, tmp_path / "other.ckpt")
    line = refused(None, "--ckpt_path", "other.ckpt", weights=True)
    says(line, "not written by rlzoo")


@pytest.mark.parametrize(("path", "words"), [(".", "is not a file"), ("cut.ckpt", "cut short")])
def test_res_02_what_cannot_be_a_checkpoint(refused, tmp_path, path, words):
    """RES-02: a folder, or a file cut short, is refused before weights load."""
    (tmp_path / "cut.ckpt").write_bytes(b"PK\x03\x04 and nothing more")
    says(refused(None, "--ckpt_path", path), f"ckpt_path '{path}'", words)


@pytest.mark.parametrize("command_line", [["generate", "--prompt", "S1="], ["export"]])
def test_commands_on_a_missing_checkpoint(command, command_line):
    extra = ["--output_dir", "out"] if command_line[0] == "export" else []
    run = command(*command_line, "--ckpt_path", "nowhere.ckpt", *extra)
    assert (run.code, len(run.err.splitlines())) == (2, 1)
    says(run.err, "ckpt_path 'nowhere.ckpt'")


# data


GOOD = [json.dumps({"prompt": f"S{i}1=", "answer": f"1{i}"}) for i in range(2, 8)]


def file_task(tmp_path, *rows):
    path = jsonl(tmp_path / "rows.jsonl", *rows)
    task = {"class_path": "JsonLines", "init_args": {"path": path, "eval_path": path}}
    return {"data.task": task, "data.train_size": None, "data.eval_size": None}


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([], ["rows.jsonl", "no rows"]),
        ([GOOD[0], "{bad"], ["rows.jsonl, row 2", "not JSON"]),
        ([GOOD[0], '{"question": "S1=", "answer": 1}'], ["row 2", "'prompt'", "answer, question"]),
        ([GOOD[0], '{"prompt": "S1=", "answer": null}'], ["row 2", "'answer' is null"]),
        ([*GOOD, '{"prompt": "S?=", "answer": 1}'], ["'S?='", "'?'", "characters"]),
        ([*GOOD, '{"prompt": "", "answer": 1}'], ["row 7", "empty"]),
        (
            ['{"prompt": [{"role": "user", "content": "S1="}], "answer": 1}'],
            ["no chat template", "chat_template"],
        ),
    ],
    ids=["empty", "malformed", "missing column", "null", "character", "no prompt", "chat"],
)
def test_bad_rows(refused, tmp_path, rows, parts):
    """DATA-01, DATA-02, PRM-03."""
    says(refused(file_task(tmp_path, *rows)), *parts)


def test_a_number_is_an_answer(tmp_path):
    rows = [json.dumps({"prompt": f"S{i}=", "answer": i}) for i in range(1, 5)]
    run = fit(tmp_path, file_task(tmp_path, *rows))
    assert run.code == 0, run.err
    assert sorted(p.target for p in run.cli[0].datamodule.train_prompts) == list("1234")


def test_long_prompts_are_refused_with_their_count(refused, tmp_path):
    """PRM-01: never cut; refused unless the user asks to leave them out."""
    rows = [*GOOD, *(json.dumps({"prompt": f"S{i}23456=", "answer": i}) for i in range(3))]
    changes = {**file_task(tmp_path, *rows), "data.max_prompt_tokens": 5}
    says(refused(changes), "3 of 9 train prompts", "max_prompt_tokens 5", "longest 8", "drop")


def test_long_prompts_are_dropped_with_their_count(tmp_path):
    rows = [*GOOD, *(json.dumps({"prompt": f"S{i}23456=", "answer": i}) for i in range(3))]
    changes = {**file_task(tmp_path, *rows), "data.max_prompt_tokens": 5}
    run = fit(tmp_path, {**changes, "data.long_prompts": "drop"})
    assert run.code == 0, run.err
    says(run.err, "dropped 3 of 9 train prompts", "2 of 6 prompts are left out of each pass")
    assert [len(p.token_ids) for p in run.cli[0].datamodule.train_prompts] == [4] * 6


def test_every_prompt_is_too_long(tmp_path):
    changes = {**file_task(tmp_path, *GOOD), "data.max_prompt_tokens": 2}
    run = fit(tmp_path, {**changes, "data.long_prompts": "drop"}, weights=False)
    assert run.code == 2
    says(run.err.splitlines()[-1], "no train prompts are left of 6", "max_prompt_tokens 2")


# rewards, which only show themselves in training


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("too_few", ["'too_few'", "expected 8 scores, got 7"]),
        ("not_a_number", ["'not_a_number'", "nan", "row 5"]),
        ("raising", ["'raising'", "row 3", "KeyError: 'units'"]),
    ],
)
@pytest.mark.parametrize("sanity", [0, -1])
def test_reward_that_breaks_its_contract(tmp_path, function, parts, sanity):
    changes = {"model.rewards": [reward(function)], "trainer.num_sanity_val_steps": sanity}
    run = fit(tmp_path, changes)
    assert run.code == 2
    assert "Traceback" not in run.err
    expected = [p.replace("8 scores, got 7", "16 scores, got 15") for p in parts]
    says(run.err.splitlines()[-1], "rlzoo: error:", *(parts if sanity else expected))


def test_a_real_process_prints_one_line_and_exits_with_2(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration({"model.group_sze": 3})))
    done = subprocess.run(
        [sys.executable, "-m", "rlzoo", "fit", "--config", "config.yaml"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rlzoo: error: model.group_sze: no such key; did you mean 'model.group_size'?\n"
    )


# CFG-01: another class


def test_gspo_does_not_inherit_the_clip_of_grpo(tmp_path):
    spec = {"class_path": "GRPO", "init_args": {"clip_low": 0.1, "clip_high": 0.3}}
    run = fit(tmp_path, {"model.algorithm": spec}, "--model.algorithm", "GSPO")
    assert run.code == 0, run.err
    algorithm = run.module.settings.algorithm
    assert (type(algorithm).__name__, algorithm.clip_low, algorithm.clip_high) == (
        "GSPO",
        3e-4,
        4e-4,
    )
    said = [line for line in run.err.splitlines() if "dropped" in line]
    assert len(said) == 1
    says(said[0], "GSPO replaces GRPO", "'clip_low': 0.1", "'clip_high': 0.3")


def test_settings_of_the_new_class_on_the_same_line_are_kept(tmp_path):
    spec = {"class_path": "GRPO", "init_args": {"clip_low": 0.1}}
    args = ["--model.algorithm", "GSPO", "--model.algorithm.clip_high", "0.01"]
    run = fit(tmp_path, {"model.algorithm": spec}, *args)
    algorithm = run.module.settings.algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (3e-4, 0.01)


def test_cispo_drops_the_clip_of_grpo_with_a_word(tmp_path):
    spec = {"class_path": "GRPO", "init_args": {"clip_low": 0.1}}
    layer = tmp_path / "layer.yaml"
    layer.write_text(yaml.safe_dump({"model": {"algorithm": "CISPO"}}))
    run = fit(tmp_path, {"model.algorithm": spec}, "--config", str(layer))
    assert run.code == 0, run.err
    assert run.module.settings.algorithm.given() == {"ratio_cap": 5.0}
    says(run.err, "CISPO replaces GRPO", "'clip_low': 0.1")


def test_nothing_is_said_where_nothing_is_lost(tmp_path):
    run = fit(tmp_path, None, "--model.algorithm", "GSPO")
    assert "dropped" not in run.err
    assert run.module.settings.algorithm.clip_high == 4e-4


def test_refusals_do_not_hide_behind_a_good_run(tmp_path):
    """The harness itself: what is accepted loads weights."""
    with pytest.raises(AssertionError, match="weights loaded"):
        fit(tmp_path, weights=False)
    assert rlzoo(tmp_path, "--version").code == 0


def test_an_optimizer_inherits_what_was_chosen_and_no_defaults(tmp_path):
    """AdamW decays weights by 0.01 unless told otherwise; SGD must not take that over."""
    args = ["--model.optimizer", "torch.optim.SGD"]
    chosen = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.02, "amsgrad": True}}
    run = fit(tmp_path, {"model.optimizer": chosen}, *args)
    group = run.trainer.optimizers[0].param_groups[0]
    assert (group["initial_lr"], group["weight_decay"]) == (0.02, 0)
    says(run.err, "SGD replaces AdamW", "'amsgrad': True")
    other = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
    run = fit(tmp_path, {"model.optimizer": other})
    group = run.trainer.optimizers[0].param_groups[0]
    assert (group["initial_lr"], group["weight_decay"]) == (0.5, 0)
