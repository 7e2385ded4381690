"""Bytes that are planned are those that are held."""

from dataclasses import replace

import pytest
import torch
from planned_jobs import job, policy_of
from tiny_models import build

from rlzoo.plan.anatomy import measure
from rlzoo.plan.memory import activation_bytes, cache_bytes, parts, peaks

LLAMAS = ("qwen3", "llama", "qwen3_moe", "mixtral", "olmoe")


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


def test_a_critic_and_a_reference_are_counted():
    plain, more = peaks(parts(job())), peaks(parts(job(critic=(8 * 10**9, 0), reference=True)))
    assert more["training"] - plain["training"] == pytest.approx(8e9 * 16 + 2 * 8.1907e9, rel=1e-3)
