"""VLLMSampler against stand-ins that draw from whatever weights they were given last."""

import sys

import pytest
import torch
from vllm_stand_in import Brain, modules, serving

from rlzoo.errors import UserError
from rlzoo.rollout import ColocatedVLLM, NativeSampler, VLLMSampler, VLLMServer
from rlzoo.types import Prompts, SamplingParams

TEXTS = ["1+2=", "abc", "12345678+9abcdef=", "0"]
WARM = SamplingParams(10, temperature=0.7)


@pytest.fixture
def brain():
    return Brain()


@pytest.fixture
def server(brain):
    with serving(brain) as url:
        yield url


@pytest.fixture(params=["server", "colocated"])
def sampler(request, brain, monkeypatch):
    if request.param == "server":
        yield VLLMSampler(VLLMServer([request.getfixturevalue("server") + "/"]))
        return
    for name, module in modules(brain).items():
        monkeypatch.setitem(sys.modules, name, module)
    yield VLLMSampler(ColocatedVLLM(options={"max_model_len": 64}))


def gap(policy, rollouts, temperature):
    """Largest distance from the policy's own scores, masks and padding compared exactly."""
    sequences = rollouts.sequences(torch.arange(len(rollouts)))
    with torch.no_grad():
        ours = policy.log_probs(sequences, temperature).log_probs
    width = ours.shape[1]
    assert torch.equal(sequences.mask, rollouts.mask[:, :width])
    assert rollouts.log_probs[~rollouts.mask].eq(0).all()
    assert rollouts.token_ids[~rollouts.mask].eq(policy.pad_id).all()
    return float((rollouts.log_probs[:, :width] - ours).abs().max())


def change(policy, seed):
    """Move the weights in a way that PyTorch's version counters do not see."""
    torch.manual_seed(seed)
    for parameter in policy.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)


def test_log_probs_ids_and_masks_are_those_of_the_policys_weights_before_and_after_an_update(
    tiny, ask, sampler, brain
):
    policy = tiny()
    prompts = ask(policy, TEXTS, [3, 0, 5, 7])
    sampler.check(policy, 1, sharded=False)
    rollouts = sampler.sample(policy, prompts, 5, WARM, 1)
    assert gap(policy, rollouts, 0.7) < 1e-5
    assert rollouts.group_ids.tolist() == [p for p in (3, 0, 5, 7) for _ in range(5)]
    last = rollouts.token_ids.gather(1, rollouts.lengths()[:, None] - 1).squeeze(1)
    assert rollouts.terminated.tolist() == [int(token) in policy.eos_ids for token in last]
    assert rollouts.lengths()[~rollouts.terminated].eq(10).all()
    assert 0 < rollouts.terminated.sum() < 20
    words = [policy.decode(rollouts.token_ids[i, rollouts.mask[i]].tolist()) for i in range(20)]
    assert rollouts.completions == tuple(words)
    assert len(set(words)) > 15  # streams of their own

    few = Prompts(prompts.rows[1:3], prompts.positions[1:3])
    again = sampler.sample(policy, few, 5, WARM, 1)
    assert torch.equal(again.token_ids, rollouts.token_ids[5:15])
    other = sampler.sample(policy, few, 5, WARM, 2)
    assert not torch.equal(other.token_ids, again.token_ids)
    moved = sampler.sample(policy, Prompts(few.rows, (8, 9)), 5, WARM, 1)
    assert not torch.equal(moved.token_ids, again.token_ids)
    assert brain.reloads == 1  # the weights stayed as they were

    change(policy, 0)
    rollouts = sampler.sample(policy, prompts, 5, WARM, 1)
    assert gap(policy, rollouts, 0.7) < 1e-5
    assert brain.reloads == 2
    assert brain.resets >= 1  # keys and values of earlier weights are gone


def test_greedy_answers_are_those_of_the_native_sampler(tiny, ask, sampler):
    policy, params = tiny(), SamplingParams(10, temperature=0)
    ours = NativeSampler().sample(policy, ask(policy, TEXTS), 2, params, 0)
    theirs = sampler.sample(policy, ask(policy, TEXTS), 2, params, 0)
    assert torch.equal(ours.token_ids, theirs.token_ids)
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=0)


def test_adapters_are_merged_and_filters_passed_on(tiny, ask, server, brain):
    policy = tiny(lora={"r": 2, "init_lora_weights": False})
    params = SamplingParams(4, temperature=1.0, top_p=0.9, top_k=3)
    sampler = VLLMSampler(VLLMServer([server]))
    sampler.sample(policy, ask(policy, TEXTS[:1]), 2, params, 0)
    assert (brain.orders[0]["top_p"], brain.orders[0]["top_k"]) == (0.9, 3)
    rollouts = sampler.sample(policy, ask(policy, TEXTS[:1]), 2, SamplingParams(4), 0)
    assert gap(policy, rollouts, 1.0) < 1e-5


def test_no_prompts_ask_nothing_and_start_nothing(tiny, sampler, brain):
    rollouts = sampler.sample(tiny(), Prompts((), ()), 3, WARM, 0)
    assert len(rollouts) == 0
    assert brain.reloads == 0


def shorter(found):
    return [(ids[:2], log_probs[:2]) for ids, log_probs in found]


def longer(found):
    return [(ids * 20, log_probs * 20) for ids, log_probs in found]


def past_the_end(found):
    return [([1, *ids[1:]], log_probs) for ids, log_probs in found]


def unscored(found):
    return [(ids, log_probs[1:]) for ids, log_probs in found]


@pytest.mark.parametrize("damage", [shorter, longer, past_the_end, unscored])
def test_answers_that_would_corrupt_masks_are_refused(tiny, ask, server, brain, damage):
    brain.damage = damage
    policy = tiny()
    assert policy.eos_ids == {1}
    with pytest.raises(UserError, match=r"an answer of \d+ tokens, \d+ log-probs"):
        VLLMSampler(VLLMServer([server])).sample(policy, ask(policy, TEXTS), 2, WARM, 3)


def test_missing_answers_are_refused(tiny, ask, sampler, brain):
    brain.damage = lambda found: found[:-1]
    policy = tiny()
    with pytest.raises(UserError, match=r"4 prompts with 2 answers each came back as 4 with \[1\]"):
        sampler.sample(policy, ask(policy, TEXTS), 2, WARM, 3)


def test_an_engine_that_keeps_old_weights_is_found_out(tiny, ask, sampler, brain):
    policy = tiny()
    sampler.sample(policy, ask(policy, TEXTS), 2, WARM, 3)
    brain.reads = False
    change(policy, 1)
    with pytest.raises(UserError, match="it runs another model, or did not take them"):
        sampler.sample(policy, ask(policy, TEXTS), 2, WARM, 3)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("version", "0.31.1", "vLLM is 0.31.1; use one from 0.32 and below 0.34"),
        ("version", "0.34.0rc1", "vLLM is 0.34.0rc1; use"),
        ("mode", "raw_logprobs", "--logprobs-mode processed_logprobs"),
        ("dev", False, "has no /server_info; start it as: VLLM_SERVER_DEV_MODE=1"),
        ("device", "cpu", "tie_word_embeddings false"),
    ],
)
def test_a_server_started_in_another_way_is_refused(tiny, server, brain, setting, value, words):
    setattr(brain, setting, value)
    policy = tiny(config={"tie_word_embeddings": True})
    with pytest.raises(UserError, match=words) as refusal:
        VLLMSampler(VLLMServer([server])).check(policy, 1, sharded=False)
    assert "\n" not in str(refusal.value)


def test_experts_on_cpu_are_refused(tiny, server, brain):
    policy, sampler = tiny("qwen3_moe"), VLLMSampler(VLLMServer([server]))
    sampler.check(policy, 1, sharded=False)
    brain.device = "cpu"
    with pytest.raises(UserError, match="into a mixture of experts"):
        sampler.check(policy, 1, sharded=False)


def test_a_cache_that_stays_and_a_failing_server_are_refused_in_one_line(tiny, ask, server, brain):
    policy = tiny()
    sampler = VLLMSampler(VLLMServer([server]))
    brain.success = False
    with pytest.raises(UserError, match="keeps what it computed with old weights"):
        sampler.sample(policy, ask(policy, TEXTS), 2, WARM, 3)
    brain.success, brain.reload = True, lambda folder: 1 / 0
    with pytest.raises(UserError, match=r"/collective_rpc fails \(500: division by zero\); it has"):
        sampler.sample(policy, ask(policy, TEXTS), 2, WARM, 3)


def test_a_dead_server_wrong_numbers_and_shares_of_weights_are_refused(tiny, tmp_path):
    policy, dead = tiny(), VLLMServer(["http://127.0.0.1:9"])
    refused = {
        "does not answer": lambda: dead.check(policy, 1),
        "1 urls for 2 processes": lambda: dead.check(policy, 2),
        "trainer.strategy spreads": lambda: VLLMSampler(dead).check(policy, 1, sharded=True),
        "must begin with http": lambda: VLLMServer(["localhost:8000"]),
        "different servers": lambda: VLLMServer(["http://a", "http://a/"]),
        "absolute path": lambda: VLLMServer(["http://a"], folder="weights"),
        "does not exist": lambda: VLLMServer(["http://a"], f"{tmp_path}/no").check(policy, 1),
        "timeout 0": lambda: VLLMServer(["http://a"], timeout=0),
        "serves one process, not 2": lambda: ColocatedVLLM().check(policy, 2),
        "memory 1.5": lambda: ColocatedVLLM(memory=1.5),
        "options.model is set by rlzoo": lambda: ColocatedVLLM(options={"model": "x"}),
    }
    for words, call in refused.items():
        with pytest.raises(UserError, match=words) as refusal:
            call()
        assert "\n" not in str(refusal.value)


def test_vllm_that_is_missing_or_has_changed_is_refused(tiny, brain, monkeypatch):
    policy = tiny()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=r"rlzoo-lightning\[vllm\]"):
        ColocatedVLLM().check(policy, 1)
    brain.version = "1.0.0"
    for name, module in modules(brain).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(UserError, match=r"vLLM is 1\.0\.0"):
        ColocatedVLLM().check(policy, 1)


def test_a_temperature_that_vllm_would_raise_is_refused(tiny, ask):
    policy = tiny()
    sampler = VLLMSampler(ColocatedVLLM())
    with pytest.raises(UserError, match="below what vLLM draws with"):
        sampler.sample(policy, ask(policy, TEXTS), 1, SamplingParams(4, temperature=0.005), 0)
