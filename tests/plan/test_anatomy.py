"""Parameters that are counted are those that are there."""

import pytest
from planned_jobs import policy_of
from tiny_models import DENSE, MOE, build

from rlzoo.errors import UserError
from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.plan.anatomy import measure


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
