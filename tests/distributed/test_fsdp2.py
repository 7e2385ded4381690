"""Two processes with half of the weights each train like one with all of them."""

import json
import os
from pathlib import Path

import pytest
import torch
from paired_runs import GRPO, PPO, Pair, one_process, two_processes
from tiny_runs import QWEN, curves_of

pytestmark = pytest.mark.timeout(200)

CLASS = "rlzoo.strategies.FSDP2Strategy"
FSDP2 = ("fsdp2",)
BY_TOKEN = (CLASS, "--trainer.strategy.gather_for_rollout", "false")
SHARES = '''
import json
import os

from lightning.pytorch import Callback


class Shares(Callback):
    """Keeps how many numbers of weights and optimizer state a rank holds."""

    def on_train_end(self, trainer, module):
        if not hasattr(next(module.policy.parameters()), "to_local"):
            return
        held = sum(p.to_local().numel() for p in module.policy.parameters())
        kept = sum(
            value.to_local().numel()
            for state in trainer.optimizers[0].state.values()
            for value in state.values()
            if value.ndim
        )
        with open("shares-" + os.environ["LOCAL_RANK"] + ".json", "w") as file:
            json.dump([held, kept, module.policy.lockstep], file)
'''
EXPERTS = {
    "class_path": "MoEPolicy",
    "init_args": {
        "characters": "abc",
        "config": {
            **{key: value for key, value in QWEN.items() if key != "intermediate_size"},
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
        },
    },
}
RUNS = {
    "by-token": (GRPO, BY_TOKEN),
    "PPO": (PPO, FSDP2),
    "experts": (
        {
            **GRPO,
            "model.policy": EXPERTS,
            "model.reference": "initial",
            "model.kl": {"coefficient": 0.1},
        },
        FSDP2,
    ),
}
ADAM = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}}


@pytest.fixture(
    scope="module",
    params=["by-token", *(pytest.param(name, marks=pytest.mark.slow) for name in list(RUNS)[1:])],
)
def pair(request, tmp_path_factory):
    changes, strategy = RUNS[request.param]
    folder = tmp_path_factory.mktemp(f"fsdp2-{request.param}")
    (folder / "shares.py").write_text(SHARES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(folder)
        spied = {"trainer.callbacks": [{"class_path": "shares.Shares"}], **changes}
        found = Pair(folder, spied, strategy)
    found.name = request.param
    return found


def test_weights_are_those_of_one_process(pair):
    one, two = pair.saved("one")["state_dict"], pair.saved("two")["state_dict"]
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert (value - two[name]).abs().max() <= 1e-5, name
    first = pair.saved("one", 1)["state_dict"]
    assert max((one[name] - first[name]).abs().max() for name in first) > 1e-3


def test_logged_values_are_those_of_one_process(pair):
    one, two = pair.one.curves(), curves_of(pair.log)
    assert one.keys() == two.keys()
    for tag, points in one.items():
        if not (tag.startswith("time/") or tag.endswith(("per_s", "record_bytes"))):
            assert [v for _, v in two[tag]] == pytest.approx([v for _, v in points], abs=1e-5), tag


def test_each_process_holds_half(pair):
    whole = sum(p.numel() for p in pair.one.module.policy.parameters())
    held = [json.loads((pair.folder / "two" / f"shares-{r}.json").read_text()) for r in range(2)]
    assert sum(count for count, _, _ in held) == whole
    assert all(count == pytest.approx(whole / 2, rel=0.02) for count, _, _ in held)
    assert {lockstep for _, _, lockstep in held} == {pair.name == "by-token"}


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_in_two_processes_and_in_one(tmp_path):
    """Adam's moments travel too: without them the next update would be as long as the first."""
    changes = {**GRPO, "model.optimizer": ADAM}
    for name in ("whole", "again", "alone"):
        (tmp_path / name).mkdir()
    log = Path("runs") / "tiny" / "version_0" / "checkpoints"
    code, _, err = two_processes(tmp_path / "whole", changes, FSDP2)
    assert code == 0, err
    middle = str(tmp_path / "whole" / log / "iteration-000001.ckpt")
    last = torch.load(tmp_path / "whole" / log / "iteration-000002.ckpt", weights_only=True)
    code, _, err = two_processes(tmp_path / "again", changes, FSDP2, "--ckpt_path", middle)
    assert code == 0, err
    again = torch.load(tmp_path / "again" / log / "iteration-000002.ckpt", weights_only=True)
    alone = one_process(tmp_path / "alone", changes, "--ckpt_path", middle).weights()
    assert again["rlzoo"]["progress"]["updates"] == last["rlzoo"]["progress"]["updates"] == 8
    for name, value in last["state_dict"].items():
        assert torch.equal(value, again["state_dict"][name]), name
        assert (value - alone[name]).abs().max() <= 1e-4, name
