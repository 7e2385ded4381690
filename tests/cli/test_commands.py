"""Help, lists, configurations: what a user reads and what the repository ships."""

import math
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml
from tiny_runs import configuration, rlzoo

from rlzoo import __version__
from rlzoo.algorithms import discover
from rlzoo.cli import main
from rlzoo.cli.commands import COMMANDS
from rlzoo.cli.commands.fit import RLCLI
from rlzoo.plan.known import KNOWN

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
FILES = {p: yaml.safe_load(p.read_text()) for p in sorted((ROOT / "configs").rglob("*.yaml"))}
COMPARISONS = [p for p, given in FILES.items() if "algorithms" in given]  # a matrix, not a run
CONFIGS = [p for p in FILES if p not in COMPARISONS]

SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
MODELS = sorted((ROOT / "configs" / "models").glob("*.yaml"))


@pytest.fixture
def built(tmp_path):
    """Parse and instantiate as fit does, then stop before the trainer runs."""

    def build(*files):
        args = [word for file in files for word in ("--config", str(file))]
        with mock.patch.object(RLCLI, "_run_subcommand") as start:
            run = rlzoo(tmp_path, "fit", *args, weights=False)
        assert run.code == 0, run.err
        start.assert_called_once()
        return run.cli[-1]

    return build


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_configuration_is_parsed_and_instantiated(built, file):
    """A file without rewards is a layer over the quickstart."""
    given = yaml.safe_load(file.read_text())
    layers = [] if "rewards" in given.get("model", {}) else [ROOT / "configs" / "quickstart.yaml"]
    command = built(*layers, file)
    assert type(command.model).__name__ == "RLModule"
    assert type(command.datamodule).__name__ == "PromptDataModule"
    assert yaml.safe_load(command.model.run_config)["model"]["policy"]["class_path"]


@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.stem)
def test_a_model_is_of_a_family_that_is_known_and_loads_as_its_file_says(built, tmp_path, file):
    """Its weights are those of a tiny model of the same family."""
    base = ROOT / "configs" / "experiments" / "gsm8k.yaml"
    path = built(base, file).model.policy.source.path
    shape = {key: SMALL.get(key, value) for key, value in KNOWN[path].items()}
    tiny = tmp_path / "tiny.yaml"
    stand_in = {"path": None, "config": shape}
    tiny.write_text(yaml.safe_dump({"model": {"policy": {"init_args": stand_in}}}))
    policy = built(base, file, tiny).model.policy
    policy.load()
    assert policy.causal_lm.config.model_type == KNOWN[path]["model_type"]
    assert policy.causal_lm.is_gradient_checkpointing


def test_there_are_configurations():
    assert ROOT / "configs" / "quickstart.yaml" in CONFIGS
    assert ROOT / "configs" / "compare.yaml" in COMPARISONS


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_comparison_is_planned(monkeypatch, capsys, file):
    """Each run's settings are read and checked as fit does."""
    monkeypatch.chdir(ROOT)
    main.main(["compare", "--config", str(file), "--dry_run"])
    given = FILES[file]
    axes = [len(values) for values in given.get("axes", {}).values()]
    runs = len(given["algorithms"]) * len(given["seeds"]) * math.prod(axes)
    assert f"{runs} runs, " in capsys.readouterr().out


@pytest.mark.parametrize("args", [[], ["--model.algorithm", "PPO", "--model.group_size", "2"]])
def test_printed_configuration_reproduces_itself(command, tmp_path, args):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(configuration({"seed_everything": 5})))
    first = command("fit", "--config", str(file), *args, "--print_config")
    assert first.code == 0, first.err
    printed = tmp_path / "printed.yaml"
    printed.write_text(first.out)
    second = command("fit", "--config", str(printed), "--print_config")
    assert yaml.safe_load(second.out) == yaml.safe_load(first.out)
    shown = yaml.safe_load(first.out)
    assert shown["seed_everything"] == 5
    assert shown["model"]["group_size"] == (2 if args else 4)
    assert shown["model"]["algorithm"]["class_path"].endswith("PPO" if args else "GRPO")
    assert shown["model"]["kl"]["estimator"] == "k3"  # defaults are printed too


def test_a_seed_of_the_run_is_the_seed_of_its_parts(built, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(configuration({"seed_everything": 7})))
    command = built(file)
    assert (command.model.settings.seed, command.datamodule.seed) == (7, 7)


def test_help_of_fit_explains_settings_from_their_docstrings(command):
    run = command("fit", "--help")
    text = " ".join(run.out.split())
    for setting, words in {
        "--model.group_size": "G, answers per prompt.",
        "--model.micro_batch_tokens": "Most tokens fed, prompts and padding included",
        "--model.kl.coefficient": "Weight (beta) of the penalty; 0 is off.",
        "--model.sampling.temperature": "greedy and allowed for evaluation only",
        "--data.long_prompts": "a prompt is never cut",
        "--checkpoint.keep_last": "How many to keep.",
        "--threads": "1 is fastest for tiny models",
    }.items():
        assert f"{setting} " in text
        assert words in text, setting
    assert run.code == 0


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_overview_names_every_command(command, args):
    run = command(*args)
    assert run.code == 0
    for name in COMMANDS:
        assert f"rlzoo {name}" in run.out


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_needs_no_library_waits_for_none(word):
    """The overview is there at once: nothing beside rlzoo and Python's own modules is loaded."""
    code = "import sys; from rlzoo.__main__ import main; main()\n"
    code += "print({'torch', 'lightning', 'transformers', 'yaml'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code, word], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[0].startswith("rlzoo" if word == "--help" else __version__)
    assert run.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("word", "unbuffered"), [("--help", ""), ("--help", "1"), ("algorithms", "")]
)
def test_a_reader_that_leaves_early_is_no_error(word, unbuffered):
    """As under ``rlzoo --help | head -1``."""
    run = subprocess.Popen(
        [sys.executable, "-m", "rlzoo", word],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    run.stdout.close()
    assert run.stderr.read() == b""
    assert run.wait() == 1


def test_another_pipe_that_breaks_is_still_an_error(monkeypatch, capsys):
    from rlzoo import __main__ as start

    def broken(_):
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr(start, "answered", broken)
    with pytest.raises(BrokenPipeError, match="of a worker"):
        start.main()


def test_the_package_runs_as_a_module(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "rlzoo", "fit", "--config", "no.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "no.yaml" in run.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"fit", "validate"}))
def test_help_of_other_commands(command, name):
    run = command(name, "--help")
    assert run.code == 0
    assert f"usage: rlzoo {name}" in run.out


def test_algorithms_lists_every_objective(command):
    run = command("algorithms")
    for name, cls in discover().items():
        line = next(line for line in run.out.splitlines() if line.startswith(f"{name} "))
        assert cls.aggregation in line
        assert cls.advantage in line
    assert "clip_low=0.0003, clip_high=0.0004" in run.out
    assert "ratio_cap=5.0" in run.out


def test_algorithms_explains_one(command):
    run = command("algorithms", "GSPO")
    assert run.code == 0
    for words in ("s_i = exp(", "arXiv 2507.18071", "clip_low:", "sequence-mean", "gspo.py"):
        assert words in run.out


def test_algorithms_suggests_a_name(command):
    run = command("algorithms", "GSPOO")
    assert run.code == 2
    assert run.err == "rlzoo: error: no objective 'GSPOO'; did you mean 'GSPO'?\n"
