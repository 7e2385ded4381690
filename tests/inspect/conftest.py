"""One checkpoint for all tests that look into one."""

import pytest
from tiny_runs import fit


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A checkpoint of two iterations with rewards that differ within groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        changes = {
            "model.rewards": [
                {
                    "class_path": "FunctionReward",
                    "init_args": {"function": "inspected_objectives.length_and_first"},
                }
            ],
            "model.algorithm": {"class_path": "GRPO", "init_args": {"clip_high": 0.3}},
            "model.optimizer.init_args.lr": 0.02,
        }
        run = fit(tmp_path_factory.mktemp("run"), changes)
        assert run.code == 0, run.err
        return next(run.folder.rglob("*.ckpt"))
