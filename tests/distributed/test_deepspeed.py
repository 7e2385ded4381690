"""DeepSpeed with experts spread over processes trains like one process: ZeRO 1 to 3."""

import json

import paired_runs
import pytest
import torch
from sharded_runs import launch
from tiny_models import MOE as FAMILIES
from tiny_runs import QWEN, curves_of, rlzoo
from transformers import AutoModelForCausalLM

from rlzoo.models import MoEPolicy

pytestmark = pytest.mark.timeout(290)

MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 16,
    "moe_intermediate_size": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
RARE = """

def rare(completion):
    return float("b" in completion[:2])
"""
LIMIT = 0.05
APART = ("time/", "tokens/per_s", "tokens/sampled_per_s", "moe/record_bytes")  # depend on processes
# Without these a tiny model is never cut up again between passes, and a missing sync would pass.
EAGER = {
    "zero_optimization": {
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
}


def write(folder, changes=None):
    folder.mkdir()
    experts = {
        "data.eval_batch_size": 3,  # ranks have 4 and 3: two batches, the last of one empty
        "model.policy": {
            "class_path": "MoEPolicy",
            "init_args": {"config": MOE, "characters": "abc"},
        },
        "model.sampling.max_new_tokens": 5,
        "model.micro_batch_tokens": 16,
        "model.max_grad_norm": LIMIT,
        "model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}},
    }
    paired_runs.write(folder, {**experts, **(changes or {})}, RARE)


def job(folder, *args, changes=None, command="fit", world=2, **strategy):
    """A run in several processes."""
    write(folder, changes)
    spec = {
        "class_path": "rlzoo.strategies.DeepSpeedExpertParallelStrategy",
        "init_args": {"config": EAGER, **strategy},
    }
    options = ["--config", "config.yaml", "--trainer.devices", str(world)]
    options += ["--trainer.strategy", json.dumps(spec)]
    return {"folder": str(folder), "args": [command, *options, *args]}


def saved(folder, iteration=2):
    return (
        folder / "runs" / "tiny" / "version_0" / "checkpoints" / f"iteration-{iteration:06d}.ckpt"
    )


def alone(folder, changes=None):
    """The same run in this process, without a strategy."""
    write(folder, changes)
    return paired_runs.trained(folder)


class Runs:
    """What several processes did, job by job."""

    def __init__(self, root, jobs, world=2):
        self.root, self.world = root, world
        found = launch(list(jobs.values()), root, world)
        self.found = {name: [rank[i] for rank in found] for i, name in enumerate(jobs)}

    def weights(self, name, iteration=2):
        file = saved(self.root / name, iteration) / "weights.ckpt"
        return torch.load(file, weights_only=True)["state_dict"]

    def curves(self, name):
        return curves_of(self.root / name / "runs" / "tiny" / "version_0")

    def assert_like(self, name, one):
        """Weights after every iteration and what is logged are those of one process."""
        for iteration in (1, 2):
            whole = one.load(iteration)["state_dict"]
            mine = self.weights(name, iteration)
            # The first process alone names tied weights twice.
            policy = {k for k in whole if k.startswith("policy.")}
            others = {k.rsplit(".", 2)[-2] for k in policy - set(mine)}
            assert others <= {"lm_head", "gate"}  # tied to another name; a buffer
            for key, value in mine.items():
                assert value.shape == whole[key].shape, key
                assert (value - whole[key]).abs().max() <= 1e-6, (name, iteration, key)
        expected = one.curves()
        for tag, points in self.curves(name).items():
            if not tag.startswith(APART):
                values = [v for _, v in expected[tag]]
                assert [v for _, v in points] == pytest.approx(values, abs=1e-5), (name, tag)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def one(root):
    return alone(root / "one")


@pytest.fixture(scope="module")
def two(root):
    spread = {f"stage {z}": {"ep_size": 2, "zero_stage": z} for z in (1, 2, 3)}
    jobs = {name: job(root / name, **strategy) for name, strategy in spread.items()}
    for name, strategy in spread.items():
        if name != "stage 2":
            path = str(saved(root / name, 1))
            again = f"{name} again"
            jobs[again] = job(root / again, "--ckpt_path", path, **strategy)
    path = str(saved(root / "stage 3"))
    jobs["validate"] = job(
        root / "validate", "--ckpt_path", path, command="validate", **spread["stage 3"]
    )
    jobs["other"] = job(root / "other", "--ckpt_path", path, **spread["stage 2"])
    return Runs(root, jobs)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_processes_train_like_one(one, two, stage):
    """MOE-04, MOE-05, DIST-03: SGD, clipping always on, uneven micro-batches, 4 updates."""
    two.assert_like(f"stage {stage}", one)
    norms = [v for _, v in two.curves(f"stage {stage}")["optim/grad_norm"]]
    assert min(norms) > 5 * LIMIT  # so that an update without clipping would be another one


def test_experts_are_spread(two, one):
    """MOE-06: each process holds its half of the experts of the file, in order."""
    layer = MoEPolicy(config=MOE, characters="abc")
    layer.load()
    whole = layer.causal_lm.model.layers[0].mlp.experts.down_proj.detach()
    for rank, found in enumerate(two.found["stage 2"]):
        assert found["shape"] == [2, 16, 8]
        half = whole[2 * rank : 2 * rank + 2].double().sum()
        assert found["sum"] == pytest.approx(float(half), abs=1e-6)


def test_dist_01_answers_that_end_at_different_lengths(two):
    """DIST-01: ranks decode different numbers of tokens in equally many forward passes."""
    lengths = []
    for rank in range(2):
        lines = (two.root / "stage 3" / f"seen-{rank}.jsonl").read_text().splitlines()
        lengths.append([[len(row[3]) for row in json.loads(line)] for line in lines])
    assert any(max(a) != max(b) for a, b in zip(*lengths, strict=True))
    for name in ("stage 1", "stage 2", "stage 3"):
        passes = [found["passes"] for found in two.found[name]]
        assert passes[0] == passes[1] > 20


@pytest.mark.parametrize("stage", [1, 3])
def test_a_run_goes_on_where_it_was(two, stage):
    """Optimizer, counters and random states; bit for bit."""
    name = f"stage {stage}"
    for key, value in two.weights(name).items():
        assert torch.equal(value, two.weights(f"{name} again")[key]), key


def test_validation_of_a_sharded_checkpoint(two, one):
    found = two.found["validate"]
    expected = {k: v[-1][1] for k, v in one.curves().items() if k.startswith("val/")}
    assert len(expected) == 4
    for rank in found:
        assert {k: rank["metrics"][k] for k in expected} == pytest.approx(expected, abs=1e-6)


def test_a_checkpoint_that_was_cut_up_otherwise_is_refused(two):
    for found in two.found["other"]:
        assert "written with processes 2, ep_size 2, zero_stage 3 and this run" in found["refused"]


def test_export_of_a_sharded_checkpoint(two, one, tmp_path):
    """A plain Hugging Face folder, with the weights of the run in one process."""
    path = str(saved(two.root / "stage 3"))
    run = rlzoo(tmp_path, "export", "--ckpt_path", path, "--output_dir", "hf")
    assert run.code == 0, run.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    for name, value in one.module.policy.model.state_dict().items():
        assert (model[name] - value).abs().max() <= 1e-6, name
    run = rlzoo(
        tmp_path, "generate", "--ckpt_path", path, "--prompt", "ab", "--max_new_tokens", "4"
    )
    assert run.code == 0, run.err
    assert run.out.startswith("ab")


def policy(kind="MoEPolicy", config=MOE, characters="abc", **options):
    given = {"config": config, "characters": characters, **options}
    return {"model.policy": {"class_path": kind, "init_args": given}}


KL = {"model.kl": {"coefficient": 0.1}}
VALUES = {
    "model.algorithm": "PPO",
    "model.advantage": {"class_path": "GAE", "init_args": {"lam": 0.9}},
}
RARELY = {"class_path": "FunctionReward", "init_args": {"function": "recording.rare"}}
SPREAD = {
    "critic": (VALUES, 3),
    "shared critic": ({**VALUES, "model.critic": "SharedCritic"}, 2),
    "reference": ({**KL, "model.reference": "initial"}, 3),
    "replay": (
        {
            **policy(replay="old-policy", aux_coefficient=0.01, gradient_checkpointing=True),
            "model.epochs": 2,
        },
        3,
    ),
    "skipped groups": (
        {
            "model.filters": [
                {"class_path": "DynamicSampling", "init_args": {"max_rounds": 2}},
                {"class_path": "SkipSilentGroups"},
            ],
            "model.rewards": [RARELY],
        },
        2,
    ),
    "unused experts": (
        {
            **policy(config={**MOE, "num_experts": 16, "num_experts_per_tok": 1}),
            "model.sampling.max_new_tokens": 1,
        },
        3,
    ),
    "cold start": (  # fitted on the first process alone, before weights are sharded
        {
            **policy(characters="0123456789S="),
            "model.cold_start": {"steps": 3, "batch_size": 4},
            "model.rewards": [{"class_path": "ExactMatch"}],
            "data.task": {
                "class_path": "DigitSorting",
                "init_args": {"min_digits": 2, "max_digits": 4},
            },
            "data.train_size": 8,
            "data.eval_size": 6,
        },
        3,
    ),
    "mixtral": (policy(config=FAMILIES["mixtral"]), 1),
    "deepseek_v3": (policy(config=FAMILIES["deepseek_v3"]), 2),
}
WHOLE = {
    "dense": (policy("DensePolicy", QWEN), 3),
    "lora": (
        {**KL, **policy("DensePolicy", QWEN, lora={"r": 2}), "model.reference": "adapter_base"},
        3,
    ),
    "experts": ({}, 3),
}


@pytest.fixture(scope="module")
def more(root):
    jobs = {}
    for size, cases in ((2, SPREAD), (1, WHOLE)):
        for name, (changes, stage) in cases.items():
            jobs[name] = job(root / name, changes=changes, ep_size=size, zero_stage=stage)
    offload = {"offload_optimizer": True, "offload_parameters": True}
    jobs["offload"] = job(root / "offload", ep_size=2, zero_stage=3, **offload)
    for stage in (1, 2, 3):
        half = policy(dtype="bfloat16")
        jobs[f"bfloat16 {stage}"] = job(
            root / f"half{stage}", changes=half, ep_size=2, zero_stage=stage
        )
    return Runs(root, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SPREAD, *WHOLE])
def test_settings_work_as_in_one_process(more, root, name):
    """MOE-08 and what else a run can ask for; ranks make equally many passes."""
    changes, _ = {**SPREAD, **WHOLE}[name]
    more.assert_like(name, alone(root / f"one {name}", changes))
    passes = [found["passes"] for found in more.found[name]]
    assert passes[0] == passes[1]
    if name == "unused experts":
        assert min(v for _, v in more.curves(name)["moe/unused_experts"]) >= 1


@pytest.mark.slow
def test_offloading_changes_nothing(more, one):
    more.assert_like("offload", one)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_is_near(more, one, stage):
    folder = more.root / f"half{stage}" / "runs" / "tiny" / "version_0"
    norms = [v for _, v in curves_of(folder)["optim/grad_norm"]]
    assert norms == pytest.approx([v for _, v in one.curves()["optim/grad_norm"]], rel=0.02)


@pytest.mark.slow
def test_four_processes_in_two_sets(root, one):
    """Two sets of experts, each over two processes: experts are averaged over the sets."""
    (root / "square").mkdir()
    jobs = {
        f"stage {stage}": job(
            root / "square" / f"stage {stage}", world=4, ep_size=2, zero_stage=stage
        )
        for stage in (1, 2, 3)
    }
    four = Runs(root / "square", jobs, world=4)
    for name in jobs:
        four.assert_like(name, one)
