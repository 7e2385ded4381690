"""The cold start: done once, kept, and the same for every objective and seed."""

import json

import pytest
import torch
from tiny_runs import QWEN, fit, jsonl, reward

from rlzoo.models import DensePolicy
from rlzoo.tasks import DigitSorting, JsonLines
from rlzoo.training.cold_start import ColdStart

pytestmark = pytest.mark.timeout(60)

COLD = {
    "model.cold_start": {"class_path": "ColdStart", "init_args": {"steps": 2, "batch_size": 8}},
    "model.rewards": [reward("lottery")],
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cold_start"


def test_the_second_run_reuses_it_and_is_the_same(cache, tmp_path):
    """Even where rewards draw from the process's generators."""
    fresh, cached = fit(tmp_path, COLD), fit(tmp_path, COLD)
    assert fresh.code == cached.code == 0, fresh.err + cached.err
    (file,) = cache.iterdir()
    assert "cold start 2/2  loss" in fresh.err
    assert "reusing" not in fresh.err
    assert f"cold start: reusing {file.name}" in cached.err
    assert "cold start 2/2" not in cached.err
    for key, value in fresh.weights().items():
        assert torch.equal(value, cached.weights()[key]), key
    assert fresh.curves()["reward/mean"] == cached.curves()["reward/mean"]


def test_objective_and_seed_start_from_the_same_weights(cache, tmp_path):
    fit(tmp_path, COLD)
    for args in (["--model.algorithm", "PPO"], ["--seed_everything", "5"]):
        run = fit(tmp_path, COLD, *args)
        assert run.code == 0, run.err
        assert "cold start: reusing" in run.err
    assert len(list(cache.iterdir())) == 1


def test_the_policy_does_start_from_it(tmp_path):
    still = {"model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.0}}}
    run = fit(tmp_path, COLD | still)
    policy = policy_of()
    start = {k: v.clone() for k, v in policy.state_dict().items()}
    ColdStart(steps=2, batch_size=8).apply(policy, DigitSorting(2, 4))
    for key, value in policy.state_dict().items():
        assert torch.equal(run.module.policy.state_dict()[key], value), key
    assert any(not torch.equal(value, start[key]) for key, value in policy.state_dict().items())


def policy_of(**changes):
    policy = DensePolicy(
        config=QWEN, characters=changes.pop("characters", "0123456789S="), **changes
    )
    policy.load()
    return policy


def test_what_determines_the_result_is_in_its_key():
    task, policy = DigitSorting(2, 4), policy_of()
    keys = [
        ColdStart().key(policy, task),
        ColdStart(noise=0.2).key(policy, task),
        ColdStart(seed=1).key(policy, task),
        ColdStart(steps=299).key(policy, task),
        ColdStart(learning_rate=1e-3).key(policy, task),
        ColdStart(batch_size=64).key(policy, task),
        ColdStart().key(policy, DigitSorting(2, 5)),
        ColdStart().key(policy_of(init_seed=1), task),
        ColdStart().key(policy_of(characters="0123456789=S"), task),
    ]
    assert len(set(keys)) == len(keys)
    assert ColdStart().key(policy_of(), DigitSorting(2, 4)) == keys[0]


def test_every_row_of_a_file_is_in_the_key(tmp_path):
    """A change far down the file is a change; having read the file already is none."""
    rows = [json.dumps({"prompt": f"S{i}=", "answer": i}) for i in range(60)]
    one = jsonl(tmp_path / "rows.jsonl", *rows)
    task, policy = JsonLines(one, eval_fraction=0.0), policy_of()
    key = ColdStart().key(policy, task)
    assert ColdStart().key(policy, task) == key
    fresh = JsonLines(one, eval_fraction=0.0)
    fresh.examples("train", 5, 0)
    assert ColdStart().key(policy, fresh) == key
    jsonl(tmp_path / "rows.jsonl", *rows[:-1], json.dumps({"prompt": "S59=", "answer": 7}))
    assert ColdStart().key(policy, JsonLines(one, eval_fraction=0.0)) != key


def test_a_file_of_few_rows_is_used_again_and_again(tmp_path):
    rows = [json.dumps({"prompt": f"S{i}=", "answer": i}) for i in range(6)]
    policy = policy_of()
    before = {k: v.clone() for k, v in policy.trainable_state().items()}
    ColdStart(steps=3, batch_size=8).apply(policy, JsonLines(jsonl(tmp_path / "few.jsonl", *rows)))
    assert any(not torch.equal(v, before[k]) for k, v in policy.trainable_state().items())
