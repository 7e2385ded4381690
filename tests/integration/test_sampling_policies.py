"""Dynamic sampling in a run, and objectives that couple rows cut into micro-batches."""

import pytest
import torch
from tiny_runs import fit, reward

pytestmark = pytest.mark.timeout(60)

QUIET = {"trainer.num_sanity_val_steps": 0, "trainer.limit_val_batches": 0}
REFILL = {
    "model.rewards": [reward("even_first")],
    "model.group_size": 2,
    "data.train_size": 16,
    "model.filters": [{"class_path": "DynamicSampling", "init_args": {"max_rounds": 2}}],
}


def test_silent_groups_are_refilled_and_counted(tmp_path):
    run = fit(tmp_path, QUIET | REFILL)
    assert run.code == 0, run.err
    rounds = [value for _, value in run.curves()["rollout/refill_rounds"]]
    assert max(rounds) >= 1  # pairs of answers agree half of the time
    silent = [value for _, value in run.curves()["reward/groups_without_signal"]]
    left = [value for _, value in run.curves()["rollout/silent_after_refill"]]
    assert silent == left
    assert sum(value for _, value in run.curves()["tokens/discarded"]) > 0


def test_a_refilled_run_is_the_same_run_again(tmp_path):
    first, second = (fit(tmp_path, QUIET | REFILL) for _ in range(2))
    for name, value in first.weights().items():
        assert torch.equal(value, second.weights()[name]), name


@pytest.mark.parametrize("algorithm", ["REAL", "GEPO", "GTPO", "ClipCov"])
def test_what_an_objective_couples_is_not_cut(tmp_path, algorithm):
    """A budget of one token and one of thousands give the same weights."""
    runs = [
        fit(
            tmp_path,
            QUIET
            | {"model.rewards": [reward("even_first")], "model.algorithm": algorithm}
            | {"model.minibatches": 2, "model.micro_batch_tokens": tokens}
            | {"model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}},
        )
        for tokens in (1, 10_000)
    ]
    assert [run.code for run in runs] == [0, 0], runs[0].err + runs[1].err
    small, large = (run.weights() for run in runs)
    assert max(float((small[k] - large[k]).abs().max()) for k in small) <= 1e-6


def test_minibatches_that_would_cut_groups_are_refused(tmp_path):
    run = fit(tmp_path, {"model.algorithm": "REAL", "model.minibatches": 8})
    assert run.code == 2
    assert "minibatches 8 would cut groups, which REAL needs whole" in run.err
