"""The command: its table, its file, its refusals."""

import json

import pytest
import yaml
from tiny_runs import configuration, rlzoo


@pytest.fixture
def planned(tmp_path):
    """Run the command on the tiny run, with values put at dotted keys."""

    def run(changes, *args):
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(configuration(changes)))
        return rlzoo(tmp_path, "plan", "--config", str(file), *args, weights=False)

    return run


def test_the_table_and_the_file_say_the_same(planned, tmp_path):
    args = ("--hardware", "h100", "--json", "plan.json", "--trainer.devices", "2")
    sampler = {"class_path": "NativeSampler", "init_args": {"max_concurrent": 3}}
    run = planned({"trainer.strategy": "ddp", "model.sampler": sampler}, *args)
    assert run.code == 0, run.err
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["fits"] is True
    assert found["sharding"]["kind"] == "ddp"
    assert found["anatomy"]["total"] == 2592
    assert found["bytes"][0]["size"] == 2592 * 4
    assert "DDP: 1 x 2 processes" in run.out
    assert "3 answers x 516 tokens" in run.out
    assert "tokens/s per device" in run.out


@pytest.mark.parametrize(
    ("changes", "args", "words"),
    [
        ({}, ["--model.group_sizes", "2"], "--model.group_sizes: no such option"),
        ({"model.group_size": 1}, [], "model.group_size 1 leaves"),
        (
            {"trainer.strategy": "fsdp2", "model.policy.init_args.dtype": "bfloat16"},
            [],
            "model.policy.dtype bfloat16 under trainer.strategy fsdp2",
        ),
        ({}, ["--json", "no/plan.json"], "there is no folder no"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(planned, changes, args, words):
    run = planned(changes, *args)
    assert run.code == 2
    assert words in run.err
    assert run.err.count("\n") == 1
