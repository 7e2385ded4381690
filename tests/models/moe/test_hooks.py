"""Routing of mixtures of experts: what is seen of it, and what it is steered by."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import DENSE, MOE
from torch import nn

from rlzoo.errors import UserError
from rlzoo.models import MoEPolicy
from rlzoo.models.moe.families import SoftmaxRouter, adapter_for
from rlzoo.models.reference import Reference
from rlzoo.training.expert_tracking import Balance, router_losses
from rlzoo.types import Sequences
from rlzoo.types.expert_choices import RouterSettings, differing

FED = torch.tensor([6, 5, 8])  # tokens of the fixture's rows, without the last of each


def seen(policy, sequences):
    """Return each layer's own (logits, weights, experts), row by row without padding."""
    found = []
    routers = adapter_for(policy.causal_lm.config.model_type).find(policy.causal_lm).values()
    for ids, count in zip(sequences.input_ids, FED, strict=True):
        outputs = []

        def keep(module, inputs, output, outputs=outputs):
            outputs.append(output)

        hooks = [router.register_forward_hook(keep) for router in routers]
        with torch.no_grad():
            policy.causal_lm(input_ids=ids[None, :count], use_cache=False)
        for hook in hooks:
            hook.remove()
        found.append(outputs)
    return found


@pytest.mark.parametrize("family", MOE)
def test_the_record_is_what_the_routers_chose_and_replaying_it_changes_nothing(
    tiny, sequences, family
):
    policy = tiny(family)
    policy.train()
    predicted = policy.log_probs(sequences)
    chosen = predicted.routing.chosen
    for row, outputs in enumerate(seen(policy, sequences)):
        for layer, (_, _, experts) in enumerate(outputs):
            assert (differing(chosen[row, : FED[row], layer], experts) == 0).all()
        assert (chosen[row, FED[row] :] == 0).all()
    again = policy.log_probs(replace(sequences, experts=chosen))
    assert torch.equal(again.log_probs, predicted.log_probs)
    gradients = [
        torch.autograd.grad(s.log_probs.sum(), list(policy.parameters()), allow_unused=True)
        for s in (predicted, again)
    ]
    for a, b in zip(*gradients, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("family", MOE)
def test_given_experts_are_used_with_weights_of_the_current_router(tiny, sequences, family):
    """Every expert is moved by one: no slot is the router's own, and the router still learns."""
    policy = tiny(family)
    sizes = policy.router_sizes
    free = policy.log_probs(sequences)
    moved = (free.routing.chosen + 1) % sizes.experts
    forced = policy.log_probs(replace(sequences, experts=moved))
    real = torch.arange(moved.shape[1]) < FED[:, None]
    assert torch.equal(forced.routing.used[real], moved[real])
    first = forced.routing.chosen[:, :, 0]  # below it nothing has changed
    assert torch.equal(first, free.routing.chosen[:, :, 0])
    assert not torch.allclose(forced.log_probs, free.log_probs)
    [router, *_] = adapter_for(policy.causal_lm.config.model_type).find(policy.causal_lm).values()
    forced.log_probs.sum().backward()
    assert router.weight.grad.abs().max() > 0


def test_weights_of_given_experts_by_hand():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    given = torch.tensor([[3, 1]])
    p = logits.softmax(-1)[0]
    router = nn.Module()
    router.norm_topk_prob = True
    found = SoftmaxRouter().weights(router, logits, given)
    torch.testing.assert_close(found[0], torch.stack([p[3], p[1]]) / (p[3] + p[1]))
    router.norm_topk_prob = False
    found = SoftmaxRouter().weights(router, logits, given)
    torch.testing.assert_close(found[0], torch.stack([p[3], p[1]]))


def test_the_adapter_of_the_documentation_replays(tiny, sequences):
    """Its weights are a softmax over the chosen logits, which is what Mixtral's come to."""
    guide = (Path(__file__).parents[3] / "docs" / "moe.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", guide, re.S)[1]
    names = {}
    exec(code, names)
    policy = tiny("mixtral", adapter=names["MyRouter"]())
    free = policy.log_probs(sequences)
    replayed = policy.log_probs(replace(sequences, experts=free.routing.chosen))
    torch.testing.assert_close(replayed.log_probs, free.log_probs, rtol=1e-5, atol=1e-5)


def test_load_and_entropy_count_real_tokens_only(tiny, sequences):
    policy = tiny("mixtral")
    routing = policy.log_probs(sequences).routing
    assert routing.tokens == FED.sum()
    load, entropy = torch.zeros(2, 4), torch.zeros(2)
    for outputs in seen(policy, sequences):
        for layer, (logits, _, experts) in enumerate(outputs):
            load[layer] += torch.bincount(experts.flatten(), minlength=4)
            entropy[layer] += torch.distributions.Categorical(logits=logits).entropy().sum()
    assert torch.equal(routing.load, load.double())
    torch.testing.assert_close(routing.entropy, entropy.double(), rtol=1e-5, atol=1e-5)


@pytest.fixture
def twins(sequences):
    """The rows twice, so that each prompt is there for two answers."""
    double = {name: torch.cat([x, x]) for name, x in vars(sequences).items() if x is not None}
    double["input_ids"][3:] += (torch.arange(12) >= sequences.prompt_lengths[:, None]).long()
    return Sequences(**double)


def test_a_token_counts_for_each_sequence_it_belongs_to(tiny, twins):
    """Feeding a prompt once for two answers changes no figure."""
    found = [tiny("mixtral", layout=layout, aux_coefficient=1.0) for layout in ("auto", "padded")]
    shared, padded = [policy.log_probs(twins).routing for policy in found]
    assert len(found[0].layout_of(twins).real) < len(found[1].layout_of(twins).real)
    assert shared.tokens == padded.tokens == 2 * FED.sum()
    assert torch.equal(shared.load, padded.load)
    torch.testing.assert_close(shared.probabilities, padded.probabilities, rtol=1e-5, atol=1e-5)
    real = torch.arange(12) < torch.cat([FED, FED])[:, None]
    assert torch.equal(shared.chosen[real], padded.chosen[real])


def test_rows_of_one_prompt_replay_their_own_experts(tiny, twins):
    """Two passes may have settled a tie differently; neither row takes the other's experts."""
    policy = tiny("mixtral")
    experts = policy.log_probs(twins).routing.chosen
    experts[3:] = (experts[3:] + 1) % 4
    used = policy.log_probs(replace(twins, experts=experts)).routing.used
    real = torch.arange(12) < torch.cat([FED, FED])[:, None]
    assert torch.equal(used[real], experts[real])


def test_the_balance_loss_of_a_layer_is_that_of_transformers(tiny, sequences):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    policy = tiny("mixtral", config={"num_hidden_layers": 1}, aux_coefficient=1.0)
    routing = policy.log_probs(sequences).routing
    logits = torch.cat([outputs[0][0] for outputs in seen(policy, sequences)])
    settings = RouterSettings(aux_coefficient=1.0)
    ours = router_losses(routing, Balance(routing.tokens, routing.load), settings)["aux"]
    theirs = load_balancing_loss_func((logits,), 4, 2)
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=1e-5)


def test_the_z_loss_is_the_mean_squared_normalizer(tiny, sequences):
    policy = tiny("mixtral", z_coefficient=1.0)
    routing = policy.log_probs(sequences).routing
    expected = torch.stack(
        [
            torch.cat([outputs[layer][0] for outputs in seen(policy, sequences)])
            for layer in range(2)
        ]
    )
    found = router_losses(routing, Balance(routing.tokens, None), policy.router)["z"]
    torch.testing.assert_close(found.float(), expected.logsumexp(-1).square().mean())


def test_a_copy_and_a_sampler_are_not_watched(tiny, sequences):
    policy = tiny("qwen3_moe", gradient_checkpointing=True)
    frozen, trunk = policy.frozen_copy(), copy.deepcopy(policy.causal_lm.base_model)
    assert frozen.log_probs(sequences).routing is None
    assert frozen.taps is not policy.taps
    with policy.taps.watching(None) as watch:
        trunk(input_ids=sequences.input_ids, use_cache=False)
        frozen.log_probs(sequences)
    assert not watch.chosen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aux_coefficient": -0.1}, "must be >= 0"),
        ({"freeze_router": True, "aux_coefficient": 0.1}, "freeze_router forbids"),
        ({"freeze_router": True, "lora": {"r": 2}}, "drop freeze_router"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        MoEPolicy(config=MOE["mixtral"], **settings)


def test_a_family_without_an_adapter_is_refused_with_the_list_and_what_one_needs():
    config = dict(DENSE["llama"], model_type="phimoe", num_local_experts=4)
    del config["head_dim"]
    with pytest.raises(UserError, match=r"'phimoe'; there are qwen3_moe, .*Write a RouterAdapter"):
        MoEPolicy(config=config).check()


def test_a_kernel_can_be_named_and_is_told(tiny, sequences):
    eager, grouped = tiny("mixtral", experts_implementation="eager"), tiny("mixtral")
    assert "kernel eager;" in eager.describe()[0]
    assert "kernel grouped_mm;" in grouped.describe()[0]
    assert torch.allclose(
        eager.log_probs(sequences).log_probs, grouped.log_probs(sequences).log_probs
    )


def test_a_frozen_router_does_not_train_and_the_rest_does(tiny, sequences):
    policy = tiny("mixtral", freeze_router=True)
    policy.log_probs(sequences).log_probs.sum().backward()
    trained = {name for name, p in policy.named_parameters() if p.grad is not None}
    assert trained
    assert not any("mlp.gate." in name for name in trained)
    assert not any("mlp.gate." in name for name in policy.trainable_state())


def test_a_router_in_fp32_computes_in_fp32(tiny, sequences):
    def dtypes(**settings):
        policy = tiny("qwen3_moe", dtype="bfloat16", **settings)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            [first, *_] = seen(policy, sequences)
            policy.log_probs(sequences)
        return {logits.dtype for logits, _, _ in first}

    assert dtypes() == {torch.bfloat16}
    assert dtypes(router_fp32=True) == {torch.float32}


def test_yaml_reads_off_as_false():
    assert MoEPolicy(config=MOE["mixtral"], replay=False).router.replay == "off"


def test_a_reference_is_read_by_the_same_adapter(tiny, sequences, tmp_path):
    policy = tiny("mixtral", adapter=SoftmaxRouter(), router_fp32=True)
    policy.save_pretrained(tmp_path / "weights")
    reference = Reference(str(tmp_path / "weights"))
    reference.build(policy)
    assert type(reference.frozen.adapter) is SoftmaxRouter
    assert reference.frozen.router_fp32
    predicted = policy.log_probs(sequences)
    given = replace(sequences, experts=(predicted.routing.chosen + 1) % 4)
    torch.testing.assert_close(reference.log_probs(given, 1.0), predicted.log_probs.detach())
