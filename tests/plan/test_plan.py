"""What is planned is what is there: parameters, bytes, and the figures of papers."""

import json
import re
from dataclasses import replace

import pytest
import torch
import yaml
from tiny_models import CHARACTERS, DENSE, MOE, build
from tiny_runs import configuration, rlzoo

from rlzoo.errors import UserError
from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.plan.anatomy import measure
from rlzoo.plan.hardware import PRESETS, hardware
from rlzoo.plan.job import Job, precision_of
from rlzoo.plan.memory import activation_bytes, cache_bytes, parts, peaks
from rlzoo.plan.sharding import Sharding, sharding_of
from rlzoo.plan.speed import bounds

LLAMAS = ("qwen3", "llama", "qwen3_moe", "mixtral", "olmoe")


def policy_of(family, **options):
    kind, table = (MoEPolicy, MOE) if family in MOE else (DensePolicy, DENSE)
    return kind(config=table[family], characters=CHARACTERS, **options)


@pytest.mark.parametrize("family", sorted({*DENSE, *MOE} - {"qwen3_5_moe"}))
def test_counts_are_those_of_the_loaded_model(family):
    found, policy = measure(policy_of(family)), build(family)
    parameters = dict(policy.causal_lm.named_parameters())
    assert found.total == found.trainable == sum(p.numel() for p in parameters.values())
    routed = sum(p.numel() for name, p in parameters.items() if ".experts." in name)
    assert found.routed == routed
    assert (routed > 0) == (family in MOE)
    # Two of four experts, so half of their weights are idle.
    assert found.active == found.total - routed // 2
    assert found.layers == 2


def test_layers_without_keys_and_values_are_refused():
    with pytest.raises(UserError, match="linear_attention; a plan knows attention alone"):
        measure(policy_of("qwen3_5_moe"))


def test_adapters_are_what_trains():
    found, policy = measure(policy_of("qwen3", lora={"r": 4})), build("qwen3", lora={"r": 4})
    assert found.trainable == sum(p.numel() for p in policy.parameters() if p.requires_grad)
    assert found.total == sum(p.numel() for p in policy.parameters()) > found.trainable > 0


@pytest.mark.parametrize(
    ("path", "total", "active"),
    [
        ("Qwen/Qwen3-0.6B", 0.6, 0.6),
        ("Qwen/Qwen3-8B", 8.2, 8.2),
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.3),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 12.9),
    ],
)
def test_published_models_have_their_published_sizes(path, total, active):
    kind = MoEPolicy if active < total else DensePolicy
    found = measure(kind(path=path))
    assert found.total / 1e9 == pytest.approx(total, abs=0.06)
    assert found.active / 1e9 == pytest.approx(active, abs=0.06)


def kept_by_autograd(policy, width):
    """Bytes of the tensors that a forward pass over one row saves, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes(), tensor  # held, so that it is not reused
        return tensor

    ids = torch.zeros(1, width, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.causal_lm.base_model(input_ids=ids, use_cache=False)
    return sum(size for size, _ in seen.values())


@pytest.mark.parametrize("family", LLAMAS)
@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_activations_are_what_autograd_keeps(family, dtype, width):
    policy = build(family, dtype=dtype)
    policy.train()
    found = kept_by_autograd(policy, 128) / 128
    planned = activation_bytes(measure(policy_of(family)), width, checkpointing=False)
    assert planned == pytest.approx(found, rel=0.05)


def test_checkpointed_layers_keep_their_input_alone():
    policy = build("qwen3", gradient_checkpointing=True)
    policy.train()
    found = kept_by_autograd(policy, 128) / 128
    anatomy = measure(policy_of("qwen3"))
    planned = activation_bytes(anatomy, 4, checkpointing=True)
    recomputed = activation_bytes(replace(anatomy, layers=1), 4, checkpointing=False)
    last = 8 * anatomy.hidden  # the final norm stands in both
    assert planned - recomputed + last == pytest.approx(found, rel=0.15)


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mixtral"])
def test_keys_and_values_are_those_of_the_cache(family):
    policy = build(family)
    cache, ids = policy.new_cache(), torch.zeros(3, 7, dtype=torch.long)
    with policy.generating():
        policy.step(ids, torch.ones_like(ids), torch.arange(7).expand(3, -1), cache)
    held = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    assert sum(t.nbytes for t in held) == cache_bytes(measure(policy_of(family)), 4) * 3 * 7


@pytest.mark.parametrize(("stage", "figure"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_holds_what_its_paper_says(stage, figure):
    """arXiv 1910.02054, figure 1: 7.5 B parameters, 64 devices, K = 12, in GB."""
    kind = Sharding("deepspeed", 64, 8, stage=stage)
    precision = precision_of("bf16-mixed", "float32", 2, "deepspeed")
    widths = {3: precision.weight, 2: precision.gradient, 1: precision.state}
    assert sum(width * kind.share(7.5, 0, s) for s, width in widths.items()) == pytest.approx(
        figure, abs=0.05
    )


def test_experts_are_spread_first_and_partitioned_over_their_replicas():
    """64 experts' weights over 8 of 16 processes: an eighth each, which 2 replicas halve."""
    spread = Sharding("deepspeed", 16, 2, stage=2, ep_size=8)
    assert spread.share(100, 64, 3) == 100 + 8
    assert spread.share(100, 64, 2) == 100 / 16 + 8 / 2


def job(**changes):
    anatomy = measure(DensePolicy(path="Qwen/Qwen3-8B"))
    given = ("32-true", "bfloat16", 2)
    base = Job(
        anatomy=anatomy,
        sharding=Sharding("single", 1),
        precision=precision_of(*given, "single"),
        given=given,
        optimizer="AdamW",
        checkpointing=True,
        critic=(0, 0),
        reference=False,
        prompts=4,
        group_size=8,
        answer_tokens=1000,
        prompt_tokens=500,
        micro_batch_tokens=16384,
        concurrent=32,
        epochs=1,
        passes_before=0,
        updates=1,
    )
    return replace(base, **changes)


def test_decoding_is_bound_by_reading_weights_and_cache():
    """8.19 B parameters less the look-up, 2 B each, and 32 x 1000 tokens x 147,456 B of cache."""
    [decode, train] = bounds(job(), PRESETS["h100"])
    read = 2 * (8.1907e9 - 151936 * 4096) + 32 * 1000 * 147456
    assert decode.rate == pytest.approx(32 / (read / 3350e9), rel=1e-3)
    assert (decode.limit, train.limit) == ("memory", "compute")
    # 6 N + 2 N for checkpointing, and causal attention: 4 x 2 L s q.
    work = 8 * (8.1907e9 - 151936 * 4096) + 8 * 36 * 1500 * 4096
    assert train.rate == pytest.approx(989e12 / work, rel=1e-3)


def test_partitioned_weights_make_decoding_wait_for_the_network():
    by_layer = Sharding("fsdp2", 4, stage=3, gather_for_rollout=False)
    decode = bounds(job(sharding=by_layer, concurrent=8), PRESETS["h100"])[0]
    whole = replace(by_layer, gather_for_rollout=True)
    assert bounds(job(sharding=whole, concurrent=8), PRESETS["h100"])[0].limit == "memory"
    assert decode.limit == "network"
    assert decode.network == pytest.approx(2 * 8.1907e9 * 3 / 4 / 450e9, rel=1e-3)


def test_experts_within_a_machine_use_its_links():
    """x = 2 experts x h = 4096 x 2 B, there and back, to 7 of 8 devices, in 32 layers."""
    spread = Sharding("deepspeed", 16, 2, stage=2, ep_size=8)
    anatomy = measure(MoEPolicy(path="mistralai/Mixtral-8x7B-Instruct-v0.1"))
    [decode, _] = bounds(job(anatomy=anatomy, sharding=spread), PRESETS["h100"])
    sent = 32 * 32 * 2 * 2 * 4096 * 2 * 7 / 8
    assert decode.network == pytest.approx(sent / 450e9)
    [decode, _] = bounds(job(anatomy=anatomy, sharding=replace(spread, nodes=4)), PRESETS["h100"])
    assert decode.network == pytest.approx(sent / 50e9)


def test_a_critic_and_a_reference_are_counted():
    plain, more = peaks(parts(job())), peaks(parts(job(critic=(8 * 10**9, 0), reference=True)))
    assert more["training"] - plain["training"] == pytest.approx(8e9 * 16 + 2 * 8.1907e9, rel=1e-3)


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


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"devices": "auto"}, "trainer.devices auto depends on the machine"),
        ({"devices": 2, "strategy": "fsdp"}, "trainer.strategy FSDPStrategy: a plan knows"),
        ({"devices": 2, "strategy": "ddpp"}, "trainer.strategy ddpp is not one of Lightning's"),
    ],
)
def test_a_strategy_that_cannot_be_planned_is_refused(trainer, words):
    with pytest.raises(UserError, match=re.escape(words)):
        sharding_of(trainer, 0)


@pytest.mark.parametrize(
    ("name", "figures", "words"),
    [("h1000", {}, "--hardware h1000: did you mean 'h100'?"), (None, {"tflops": -1.0}, "--tflops")],
)
def test_hardware_that_is_not_there_is_refused(name, figures, words):
    given = dict.fromkeys(("memory_gb", "tflops", "bandwidth_gb_s", "interconnect_gb_s"))
    with pytest.raises(UserError, match=re.escape(words)):
        hardware(name, **{**given, **figures})
