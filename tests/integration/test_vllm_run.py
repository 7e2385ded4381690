"""Whole runs whose answers come from a server, and one whose server is not there."""

import pytest
from tiny_runs import fit
from vllm_stand_in import Brain, serving

SAMPLER = "model.sampler"


def sampler(url, **options):
    engine = {"class_path": "VLLMServer", "init_args": {"urls": [url], **options}}
    return {"class_path": "VLLMSampler", "init_args": {"engine": engine}}


def test_a_run_trains_on_the_answers_of_a_server_that_follows_its_weights(tmp_path):
    """Before training, and after each of two iterations' updates, held-out prompts included."""
    brain = Brain()
    changes = {"model.corrections": [{"class_path": "TruncatedIS"}], "data.eval_size": 2}
    with serving(brain) as url:
        run = fit(tmp_path, {SAMPLER: sampler(url, folder=str(tmp_path)), **changes})
    assert run.code == 0, run.err
    assert brain.reloads == brain.resets == 3
    assert not list(tmp_path.glob("rlzoo-vllm-*"))
    weights = [value for _, value in run.curves()["correction/weight_mean"]]
    assert weights == pytest.approx([1, 1], abs=1e-4)  # of trainer to sampler


@pytest.mark.parametrize("strategy", ["fsdp2", "auto"])
def test_what_cannot_work_is_said_in_one_line_before_weights_load(tmp_path, strategy):
    changes = {SAMPLER: sampler("http://127.0.0.1:9"), "trainer.strategy": strategy}
    run = fit(tmp_path, changes, weights=False)
    words = {"fsdp2": "needs whole weights in every process", "auto": "does not answer"}
    assert run.code == 2
    assert [words[strategy] in line for line in run.err.splitlines()] == [True], run.err
