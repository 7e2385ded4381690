"""A mixture of experts through the command line: what is logged of it, and what is refused."""

import json

import pytest
from tiny_runs import fit

pytestmark = pytest.mark.timeout(60)

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32,
}


def policy(**settings):
    init_args = {"config": MIXTRAL, "characters": "0123456789S=", **settings}
    return {"model.policy": {"class_path": "MoEPolicy", "init_args": init_args}}


def test_a_run_says_what_it_trains_and_logs_its_routing(tmp_path):
    settings = policy(replay="old-policy", aux_coefficient=0.01)
    run = fit(tmp_path, {**settings, "model.minibatches": 2})
    assert run.code == 0, run.err
    assert "experts: 2 layers x 4, 2 per token, kernel grouped_mm" in run.err
    assert "replay old-policy, aux loss 0.01" in run.err
    curves = run.curves()
    assert [value for _, value in curves["moe/volatility"]] == [0, 0]
    assert all(1 <= value <= 2 for _, value in curves["moe/load_max"])
    assert all(value >= 1.5 for _, value in curves["moe/aux_loss"])
    table = json.loads((run.folder / "experts.json").read_text())
    assert [table["first"]["iteration"], table["last"]["iteration"]] == [1, 2]
    assert all(sum(row) == pytest.approx(4, abs=1e-3) for row in table["last"]["load"])
    assert {"moe/volatility_free", "moe/load_max/layer_1", "moe/record_bytes"} <= curves.keys()


def test_replay_of_the_rollout_acts_with_one_update(tmp_path):
    run = fit(tmp_path, policy(replay="rollout"))
    assert run.code == 0, run.err
    assert all(value < 0.05 for _, value in run.curves()["moe/rollout_volatility"])


def test_a_sampler_without_experts_cannot_be_replayed(tmp_path):
    (tmp_path / "silent.py").write_text(
        "from rlzoo.rollout import NativeSampler\n"
        "class Silent(NativeSampler):\n"
        "    reports_experts = False\n"
    )
    changes = {**policy(replay="rollout"), "model.sampler": "silent.Silent"}
    run = fit(tmp_path, changes, weights=False)
    assert run.code == 2
    assert "which Silent does not report; use NativeSampler" in run.err


def test_replay_that_could_not_act_is_refused(tmp_path):
    run = fit(tmp_path, policy(replay="old-policy"), weights=False)
    assert run.code == 2
    assert "model.policy.replay old-policy has no effect with one update" in run.err
