"""A short run from end to end: what it writes, and what can be done with what it wrote."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch
import yaml
from tiny_runs import configuration, fit, reward, rlzoo

pytestmark = pytest.mark.timeout(120)

FOUR = {
    "trainer.max_epochs": 2,  # of 2 iterations
    "model.rewards": [
        {"class_path": "ExactMatch", "init_args": {"weight": 2.0}},
        reward("even_first"),
    ],
    "model.evaluation": {"samples": 2, "accuracy": "even_first"},
    "model.minibatches": 2,
    "report": {"every_n_iterations": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run for the whole file; nothing here changes it."""
    done = fit(tmp_path_factory.mktemp("fit"), FOUR)
    assert done.code == 0, done.err
    return done


def test_summary(run):
    summary = json.loads((run.folder / "summary.json").read_text())
    assert set(summary) == {
        "algorithm",
        "seed",
        "accuracy_before",
        "accuracy_after",
        "greedy_before",
        "greedy_after",
        "iterations",
        "updates",
        "tokens",
        "seconds",
        "seconds_by_part",
        "held_out",
        "first_rollouts",
        "config_hash",
        "versions",
    }
    curves = run.curves()
    assert 0 < sum(summary["seconds_by_part"].values()) <= summary["seconds"] + 0.01
    assert (summary["algorithm"], summary["seed"]) == ("GRPO", 0)
    assert (summary["iterations"], summary["updates"]) == (4, 8)
    assert summary["tokens"] == sum(value for _, value in curves["tokens/iteration"])
    assert summary["tokens"] == curves["tokens/total"][-1][1]
    assert summary["seconds"] > 0
    assert len(summary["first_rollouts"]) == 16  # equal for runs that began alike
    assert [point["iteration"] for point in summary["held_out"]] == [0, 2, 4]
    for name, key in (("accuracy", "val/accuracy"), ("greedy", "val/greedy")):
        values = [value for _, value in curves[key]]
        assert len(values) == 3
        assert [summary[f"{name}_before"], summary[f"{name}_after"]] == pytest.approx(
            [values[0], values[-1]]
        )
    assert 0 < summary["accuracy_before"] < 1  # the named reward judges, not the first one
    assert summary["held_out"][0]["val/pass@2"] >= summary["accuracy_before"]
    assert summary["versions"]["torch"] == torch.__version__


def test_picture(run):
    import matplotlib.image

    picture = matplotlib.image.imread(run.folder / "reward.png")
    assert (run.folder / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.shape[:2] == (504, 840)
    assert picture.std() > 0.02  # something is drawn
    assert 8_000 < (run.folder / "reward.png").stat().st_size < 200_000


def test_one_point_per_iteration_under_every_tag(run):
    curves = run.curves()
    for tag in (
        "policy/loss",
        "policy/clip_fraction",
        "policy/ratio_mean",
        "reward/mean",
        "reward/std",
        "reward/exact_match",
        "reward/even_first",
        "reward/groups_without_signal",
        "rollout/length",
        "rollout/truncated",
        "optim/grad_norm",
        "optim/lr",
        "optim/skipped",
        "tokens/per_s",
        "tokens/total",
        "time/rollout_s",
        "time/rewards_s",
        "time/training_s",
        "time/iteration_s",
        "updates",
    ):
        assert [step for step, _ in curves[tag]] == [0, 1, 2, 3], tag
        assert all(math.isfinite(value) for _, value in curves[tag]), tag
    assert [value for _, value in curves["updates"]] == [2, 4, 6, 8]
    assert [step for step, _ in curves["val/accuracy"]] == [0, 1, 3]


def test_rewards_are_weighted_and_logged_apart(run):
    curves = run.curves()
    mean, exact, even = (
        torch.tensor([value for _, value in curves[f"reward/{name}"]])
        for name in ("mean", "exact_match", "even_first")
    )
    torch.testing.assert_close(mean, 2 * exact + even)
    assert even.max() > 0


def test_throughput_is_tokens_over_seconds(run):
    curves = run.curves()
    tokens, seconds, rate = (
        torch.tensor([value for _, value in curves[tag]])
        for tag in ("tokens/iteration", "time/iteration_s", "tokens/per_s")
    )
    torch.testing.assert_close(rate, tokens / seconds, rtol=1e-4, atol=0)
    assert tokens.min() >= 16  # 16 answers of 1 to 4 tokens
    assert tokens.max() <= 64


def test_terminal_output(run):
    for words in (
        "held-out, before training: accuracy",
        "plan: 4 iterations x 2 updates; an iteration is 4 prompts x 4 = 16 answers",
        "sampling: temperature 1.0, top_p 1.0, top_k off",
        "iteration 2/4  reward",
        "held-out, after iteration 4",
        "held-out accuracy: sampled",
        "4 iterations, 8 updates",
    ):
        assert words in run.err
    assert re.search(r"self-check: max \|ratio - 1\| \d\.\de[+-]\d+; sampler against", run.err)
    assert "answers at iteration 4" in run.out
    assert "the ratio is exactly 1" not in run.err  # two minibatches


def test_configuration_is_kept_and_runs_again(run, tmp_path):
    first = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert first["model"]["minibatches"] == 2
    again = rlzoo(tmp_path, "fit", "--config", str(run.folder / "config.yaml"))
    assert again.code == 0, again.err
    for key, value in run.weights().items():
        assert torch.equal(value, again.weights()[key])


def test_export_gives_the_same_model(run, tmp_path):
    """From the checkpoint alone: no configuration file is named."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = str(run.checkpoint(4).resolve())
    done = rlzoo(tmp_path, "export", "--ckpt_path", path, "--output_dir", "out")
    assert done.code == 0, done.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = torch.tensor([tokenizer("S3142=")["input_ids"]])
    assert ids.tolist() == [run.module.policy.encode("S3142=")]
    with torch.no_grad(), run.module.policy.generating():
        ours = run.module.policy.causal_lm(ids).logits
        theirs = model(ids).logits
    assert torch.equal(ours, theirs)
    assert "AutoModelForCausalLM" in done.out
    again = rlzoo(tmp_path, "export", "--ckpt_path", path, "--output_dir", "out")
    assert again.code == 2
    assert "output_dir 'out' is not empty" in again.err


def test_generate_answers_with_the_trained_weights(run, tmp_path):
    from rlzoo.rollout.native import NativeSampler
    from rlzoo.types import Prompt, Prompts, SamplingParams

    policy = run.module.policy
    texts = ["S31=", "S9842="]
    rows = tuple(Prompt(tuple(policy.encode(text)), text) for text in texts)
    greedy = SamplingParams(max_new_tokens=6, temperature=0.0)
    expected = NativeSampler().sample(policy, Prompts(rows, (0, 1)), 1, greedy, 0)
    prompts = [word for text in texts for word in ("--prompt", text)]
    path = str(run.checkpoint(4).resolve())
    done = rlzoo(tmp_path, "generate", "--ckpt_path", path, *prompts, "--max_new_tokens", "6")
    assert done.code == 0, done.err
    cut = ["" if end else " [cut]" for end in expected.terminated.tolist()]
    assert done.out.splitlines() == [
        text + answer + mark
        for text, answer, mark in zip(texts, expected.completions, cut, strict=True)
    ]


def test_objective_of_a_user(tmp_path):
    """One class in a file of one's own, named by its import path, with its own setting."""
    (tmp_path / "users_objectives.py").write_text(
        "from rlzoo.algorithms import Algorithm, Surrogate\n"
        "\n"
        "class Reinforce(Algorithm):\n"
        "    def __init__(self, scale: float = 1.0) -> None:\n"
        "        self.scale = scale\n"
        "\n"
        "    def clip(self, ratio, batch):\n"
        "        objective = self.scale * batch.advantages * batch.log_probs\n"
        "        return Surrogate(objective, objective.isnan())\n"
    )
    changes = {"model.rewards": [reward("even_first")]}
    args = ["--model.algorithm", "users_objectives.Reinforce", "--model.algorithm.scale", "2.0"]
    done = fit(tmp_path, changes, *args)
    assert done.code == 0, done.err
    assert done.module.settings.algorithm.scale == 2.0
    start = done.cli[-1].model.policy.source.weights("float32", "sdpa", 0).state_dict()
    trained = done.module.policy.causal_lm.state_dict()
    assert any(not torch.equal(start[key], trained[key]) for key in start)
    assert json.loads((done.folder / "summary.json").read_text())["algorithm"] == "Reinforce"


def test_rewards_that_all_abstain_train_nothing(tmp_path):
    """LOSS-08: no NaN, weights as they were, the step is counted as one without signal."""
    changes = {
        "model.rewards": [reward("abstaining")],
        "model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}},
        "report": {"every_n_iterations": 1},
    }
    done = fit(tmp_path, changes)
    assert done.code == 0, done.err
    curves = done.curves()
    assert [v for _, v in curves["policy/loss"]] == [0.0, 0.0]
    assert [v for _, v in curves["optim/without_signal"]] == [1.0, 1.0]
    assert [v for _, v in curves["reward/abstained"]] == [1.0, 1.0]
    assert all(math.isnan(v) for _, v in curves["reward/mean"])
    assert "iteration 2/2  reward nan" in done.err
    start = done.module.policy.source.weights("float32", "sdpa", 0).state_dict()
    for key, value in done.module.policy.causal_lm.state_dict().items():
        assert torch.equal(start[key], value), key


@pytest.mark.slow
def test_real_process_trains_without_noise(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration()))
    done = subprocess.run(
        [sys.executable, "-m", "rlzoo", "fit", "--config", "config.yaml"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for word in ("arning", "Traceback", "deprecated", "TPU", "Seed set"):
        assert word not in done.stderr
    assert "answers at iteration 2" in done.stdout
