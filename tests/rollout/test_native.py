"""The native sampler: Hugging Face's tokens greedily, the model's distribution when sampling."""

import gc
import json
import weakref
from functools import partial

import pytest
import torch

from rlzoo.errors import UserError
from rlzoo.models import DensePolicy
from rlzoo.rollout import NativeSampler
from rlzoo.rollout.decoding import kv_cache
from rlzoo.rollout.decoding.choice import decoder_for
from rlzoo.types import Prompt, Prompts, SamplingParams

TEXTS = ["1+2=", "abc", "12345678+9abcdef=", "0"]
FUSED = ["qwen3", "qwen2", "llama", "mistral", "mixtral", "qwen2_moe", "qwen3_moe"]
FAMILIES = [*FUSED, "gpt2", "gemma2"]


def same(one, two):
    assert torch.equal(one.token_ids, two.token_ids)
    assert torch.equal(one.mask, two.mask)
    assert torch.equal(one.terminated, two.terminated)
    torch.testing.assert_close(one.log_probs, two.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_generate_token_for_token(tiny, ask, family):
    """LP-05 too: each prompt alone in Hugging Face's generate, all together and left-padded here."""
    policy = tiny(family)
    prompts = ask(policy, TEXTS)
    rollouts = NativeSampler().sample(policy, prompts, 2, SamplingParams(20, temperature=0), 0)
    for row in range(len(rollouts)):
        ids = torch.tensor([rollouts.prompt(row).token_ids])
        with policy.generating():
            theirs = policy.causal_lm.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False
            )[0, ids.shape[1] :]
        assert rollouts.token_ids[row, rollouts.mask[row]].tolist() == theirs.tolist()
    assert len({tuple(row) for row in rollouts.token_ids.tolist()}) > 1


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_the_policy(tiny, ask, family, temperature):
    """LP-10: each log-prob belongs to the sampled id beside it; a greedy one is at temperature 1."""
    policy = tiny(family)
    params = SamplingParams(12, temperature=temperature)
    rollouts = NativeSampler(6).sample(policy, ask(policy, TEXTS), 5, params, 1)
    with torch.no_grad():
        sequences = rollouts.sequences(torch.arange(len(rollouts)))
        ours = policy.log_probs(sequences, temperature or 1.0).log_probs
    width = ours.shape[1]
    assert torch.equal(sequences.mask, rollouts.mask[:, :width])
    torch.testing.assert_close(rollouts.log_probs[:, :width], ours, atol=1e-5, rtol=0)
    assert rollouts.log_probs[rollouts.mask].lt(0).all()
    assert rollouts.log_probs[~rollouts.mask].eq(0).all()


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2"])
def test_keys_and_values_are_gone_when_sampling_ends(tiny, ask, family, monkeypatch):
    """They are the largest thing in a rollout, and training needs the room at once."""
    policy = tiny(family)
    seen = []
    begin = kv_cache.Slots.__init__

    def noted(self, *args):
        begin(self, *args)
        seen.append(weakref.ref(self))

    monkeypatch.setattr(kv_cache.Slots, "__init__", noted)
    sample = partial(NativeSampler().sample, policy, ask(policy, TEXTS), 2, SamplingParams(4))
    sample(0)
    gc.collect()
    seen.clear()
    gc.disable()
    try:
        sample(1)
        assert seen
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gemma2", "gpt2"])
def test_autocast_casts_once_and_gives_the_weights_back(tiny, ask, family):
    """bfloat16 on both paths: near the trainer's log-probs, and float32 weights afterwards."""
    policy = tiny(family, config={"initializer_range": 0.1})
    before = {name: p.clone() for name, p in policy.named_parameters()}
    with torch.autocast("cpu", torch.bfloat16):
        rollouts = NativeSampler().sample(policy, ask(policy, TEXTS), 4, SamplingParams(12), 0)
        gap_to_policy(policy, rollouts, 0.1)
    exact = NativeSampler().sample(policy, ask(policy, TEXTS), 4, SamplingParams(12), 0)
    assert not torch.equal(rollouts.log_probs[:, 0], exact.log_probs[:, 0])
    for name, p in policy.named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, before[name])


def test_the_fused_decoder_can_be_turned_off(tiny, ask, monkeypatch):
    """The answers stay; who makes them does not."""
    policy = tiny("qwen3")
    prompts, params = ask(policy, TEXTS), SamplingParams(8, 1.0)
    expected = NativeSampler().sample(policy, prompts, 2, params, 1)
    monkeypatch.setattr("rlzoo.rollout.native.decoder_for", None)
    same(NativeSampler(decoder="transformers").sample(policy, prompts, 2, params, 1), expected)
    with pytest.raises(UserError, match="decoder 'fast' is unknown; use auto or transformers"):
        NativeSampler(decoder="fast")


WINDOWS = {"mistral": {}, "mixtral": {}, "qwen3_moe": {"use_sliding_window": True}}


@pytest.mark.parametrize("family", WINDOWS)
def test_a_sliding_window_is_seen_by_sampler_and_trainer_alike(tiny, ask, family):
    """Answers reach far beyond a window of 12, which the trial of the decoder does not; these families name no kinds of layers."""
    policy = tiny(family, config={"sliding_window": 12, **WINDOWS[family]})
    prompts = ask(policy, ["1", "1+2=3+", "abcdef0123"])
    rollouts = NativeSampler().sample(policy, prompts, 2, SamplingParams(20, 1.0), 3)
    gap_to_policy(policy, rollouts, 1e-5)
    wide = tiny(family, config={"sliding_window": None})
    wide.load_state_dict(policy.state_dict())
    with pytest.raises(AssertionError):  # the window does matter to these answers
        gap_to_policy(wide, rollouts, 1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_which_decoder_is_used(tiny, family, caplog):
    policy = tiny(family)
    with policy.generating(), caplog.at_level("INFO", "rlzoo"):
        kinds = {type(decoder_for(policy, 2, 4)).__name__ for _ in range(2)}
    assert kinds == {"FusedDecoder" if family in FUSED else "SlotDecoder"}
    reasons = [line for line in caplog.messages if line.startswith("sampler: ")]
    assert len(reasons) == (family not in FUSED), "the reason is given, once"


def test_a_model_that_the_fused_decoder_gets_wrong_is_left_to_transformers(tiny, caplog):
    policy = tiny("llama")
    for layer in policy.causal_lm.model.layers:
        layer.self_attn.o_proj.register_forward_hook(lambda module, args, out: 2 * out)
    with policy.generating(), caplog.at_level("INFO", "rlzoo"):
        assert type(decoder_for(policy, 2, 4)).__name__ == "SlotDecoder"
    assert "logits of the fused decoder differ" in caplog.text


def test_lp10_token_ids_are_never_made_from_text(tiny, ask):
    """LP-10: answers that decode to text which encodes differently keep their sampled ids."""
    policy = tiny(config={"vocab_size": 40})
    rollouts = NativeSampler().sample(policy, ask(policy, TEXTS), 8, SamplingParams(10), 0)
    assert (rollouts.token_ids >= len(policy.tokenizer)).any(), "ids that no text encodes to"
    assert rollouts.log_probs.ne(0).equal(rollouts.mask)
    assert [len(text) for text in rollouts.completions] != rollouts.lengths().tolist()


def test_answers_do_not_depend_on_batch_size(tiny, ask):
    policy = tiny()
    prompts, params = ask(policy, TEXTS * 3), SamplingParams(12)
    expected = NativeSampler(64).sample(policy, prompts, 6, params, 7)
    for size in (1, 4, 13):
        same(NativeSampler(size).sample(policy, prompts, 6, params, 7), expected)
    other = NativeSampler(64).sample(policy, prompts, 6, params, 8)
    assert not torch.equal(other.token_ids, expected.token_ids)


def test_answers_do_not_depend_on_order_or_rank(tiny, ask):
    """Another rank, or another order, gives each (position, sample) the same answer."""
    policy, params = tiny(), SamplingParams(12)
    whole = NativeSampler().sample(policy, ask(policy, TEXTS), 4, params, 3)
    order = [3, 1, 2]
    part = NativeSampler().sample(
        policy, ask(policy, [TEXTS[i] for i in order], positions=order), 4, params, 3
    )
    rows = torch.tensor([i * 4 + g for i in order for g in range(4)])
    assert torch.equal(part.token_ids, whole.token_ids[rows])
    assert torch.equal(part.group_ids, whole.group_ids[rows])
    assert part.group_ids.tolist() == [3] * 4 + [1] * 4 + [2] * 4


def test_the_same_text_twice_is_two_groups(tiny, ask):
    policy = tiny()
    rollouts = NativeSampler().sample(policy, ask(policy, ["1+1="] * 2), 4, SamplingParams(12), 0)
    assert rollouts.group_ids.tolist() == [0] * 4 + [1] * 4
    assert len({tuple(row) for row in rollouts.token_ids.tolist()}) == 8


def chi_square(counts, probs):
    expected = probs * counts.sum()
    kept = expected > 5
    return ((counts - expected)[kept] ** 2 / expected[kept]).sum() / kept.sum()


def test_first_tokens_follow_the_softmax(tiny, ask):
    """Chi-square per degree of freedom is near 1 at the right temperature and far off at another."""
    policy, temperature = tiny(), 0.8
    prompts = ask(policy, ["12+"])
    params = SamplingParams(1, temperature=temperature)
    rollouts = NativeSampler(4096).sample(policy, prompts, 8192, params, 0)
    counts = rollouts.token_ids[:, 0].bincount(minlength=len(policy.tokenizer)).double()
    with torch.no_grad():
        ids = torch.tensor([prompts.rows[0].token_ids])
        logits = policy.causal_lm(input_ids=ids).logits[0, -1].double()
    assert chi_square(counts, (logits / temperature).softmax(-1)) < 2
    assert chi_square(counts, logits.softmax(-1)) > 10


def answer(policy, prompts, width, **kwargs):
    rows = tuple(Prompt((token,), "") for token in prompts)
    params = SamplingParams(width)
    return NativeSampler(**kwargs).sample(
        policy, Prompts(rows, tuple(range(len(rows)))), 1, params, 0
    )


def test_eos01_pad_may_be_eos(scripted):
    """EOS-01: [5, 6, E, E, E] with pad = E has mask [1, 1, 1, 0, 0], length 3, terminated."""
    policy = scripted({9: 5, 5: 6, 6: 2, 2: 7}, eos_ids=[2], pad_id=2)
    rollouts = answer(policy, [9], 5)
    assert rollouts.token_ids.tolist() == [[5, 6, 2, 2, 2]]
    assert rollouts.mask.int().tolist() == [[1, 1, 1, 0, 0]]
    assert rollouts.lengths().tolist() == [3]
    assert rollouts.terminated.tolist() == [True]


def test_eos02_any_of_the_eos_ids_ends_an_answer(scripted):
    """EOS-02: EOS {1, 106}, [7, 106, 9] -> mask [1, 1, 0], not cut; another stops at the limit."""
    policy = scripted({9: 7, 7: 106, 106: 9, 20: 21, 21: 20}, eos_ids=[1, 106], pad_id=0)
    rollouts = answer(policy, [9, 20], 3)
    assert rollouts.token_ids.tolist() == [[7, 106, 0], [21, 20, 21]]
    assert rollouts.mask.int().tolist() == [[1, 1, 0], [1, 1, 1]]
    assert rollouts.terminated.tolist() == [True, False]
    assert rollouts.completions == ("7", "21 20 21"), "padding is not decoded"


def test_eos05_an_answer_may_be_only_eos(scripted):
    """EOS-05: mask [1], decoded to nothing."""
    rollouts = answer(scripted({9: 1, 1: 5}, eos_ids=[1], pad_id=0), [9], 3)
    assert rollouts.mask.int().tolist() == [[1, 0, 0]]
    assert rollouts.completions == ("",)
    assert rollouts.terminated.tolist() == [True]


def test_an_eos_at_the_last_token_terminates(scripted):
    rollouts = answer(scripted({9: 5, 5: 1}, eos_ids=[1], pad_id=0), [9], 2)
    assert rollouts.mask.all()
    assert rollouts.terminated.all()


def test_rows_that_leave_the_batch_do_not_disturb_the_others(scripted):
    """Chains of different lengths, so that rows leave one at a time and in groups."""
    following = {1: 59, **{token: token - 1 for token in range(2, 60)}}
    starts = [2, 3, 3, 4, 40, 10, 2, 7, 30, 3]
    rollouts = answer(scripted(following, eos_ids=[1], pad_id=0), starts, 50)
    for start, ids, mask in zip(starts, rollouts.token_ids, rollouts.mask, strict=True):
        assert ids[mask].tolist() == list(range(start - 1, 0, -1))
        assert ids[~mask].eq(0).all()
    assert rollouts.terminated.all()


def test_finished_rows_leave_the_batch(tiny, ask, monkeypatch):
    policy, rows = tiny("gemma2", config={"eos_token_id": list(range(12))}), []
    step = policy.step

    def counted(input_ids, *args):
        rows.append(len(input_ids))
        return step(input_ids, *args)

    monkeypatch.setattr(policy, "step", counted)
    rollouts = NativeSampler().sample(policy, ask(policy, TEXTS), 16, SamplingParams(20), 0)
    assert rows[0] == 4, "one prefill per prompt, not per answer"
    assert rows[1] <= 64
    assert rows[-1] < 32
    alive = rollouts.mask.sum(0)[1 : len(rows)]
    assert all(have * 15 / 16 <= need <= have for have, need in zip(rows[1:], alive, strict=True))


def test_waiting_answers_take_the_places_of_finished_ones(tiny, ask, monkeypatch):
    """The batch stays nearly full until nobody waits: far fewer steps than block after block."""
    policy, steps = tiny("gemma2", config={"eos_token_id": list(range(9))}), []
    step = policy.step

    def counted(input_ids, *args):
        steps.append(len(input_ids) if input_ids.shape[1] == 1 else 0)
        return step(input_ids, *args)

    monkeypatch.setattr(policy, "step", counted)
    prompts, params = ask(policy, TEXTS * 6), SamplingParams(30)
    rollouts = NativeSampler(16).sample(policy, prompts, 4, params, 0)
    lengths = rollouts.lengths().view(-1, 16)
    decoding = [rows for rows in steps if rows]
    assert max(decoding) == 16
    assert len(decoding) < 0.7 * int((lengths.max(-1).values - 1).sum())
    # Places that are kept free for whole groups, and the last answers, cost a quarter at most.
    assert sum(decoding) < 1.25 * int((lengths - 1).sum())


def test_the_slots_move_when_their_columns_run_out(tiny, ask, monkeypatch):
    """Answers that join late, after short ones, and prompts longer than all columns so far."""
    policy, params = tiny(config={"eos_token_id": list(range(3))}), SamplingParams(50)
    texts = ["1", "2+", "3", "1+2=" * 15, "7", "abcdef" * 6, *TEXTS]
    expected = NativeSampler().sample(policy, ask(policy, texts), 3, params, 1)
    monkeypatch.setattr(kv_cache, "_MORE", 2)
    for places in (4, 9):
        same(NativeSampler(places).sample(policy, ask(policy, texts), 3, params, 1), expected)
    assert expected.lengths().max() > 20


def test_lp03_generation_config_is_not_used(tiny, ask, tmp_path):
    """LP-03: a repetition penalty, top-k and minimum length in the folder change nothing."""
    policy = tiny()
    prompts, params = ask(policy, TEXTS), SamplingParams(12)
    expected = NativeSampler().sample(policy, prompts, 4, params, 0)
    policy.save_pretrained(tmp_path)
    settings = {"repetition_penalty": 5.0, "top_k": 1, "temperature": 0.1, "min_length": 40}
    (tmp_path / "generation_config.json").write_text(json.dumps({**settings, "do_sample": True}))
    loaded = DensePolicy(path=str(tmp_path))
    loaded.load()
    assert loaded.causal_lm.generation_config.top_k == 1
    same(NativeSampler().sample(loaded, prompts, 4, params, 0), expected)


def test_lit03_rollouts_can_be_trained_on(tiny, ask):
    """LIT-03: no inference tensors; the policy is back in training mode."""
    policy = tiny(gradient_checkpointing=True)
    policy.training_mode()
    rollouts = NativeSampler().sample(policy, ask(policy, TEXTS), 3, SamplingParams(6), 0)
    assert policy.model.training
    predicted = policy.log_probs(rollouts.sequences(torch.arange(len(rollouts))))
    ratio = (predicted.log_probs - rollouts.log_probs[:, : predicted.log_probs.shape[1]]).exp()
    ratio.sum().backward()
    assert policy.causal_lm.lm_head.weight.grad.abs().sum() > 0


def test_gradient_checkpointing_and_mode_do_not_change_answers(tiny, ask):
    """LIT-01: sampling in the middle of training uses the cache like anywhere else."""
    plain, checkpointed = tiny(), tiny(gradient_checkpointing=True)
    checkpointed.training_mode()
    prompts, params = ask(plain, TEXTS), SamplingParams(8)
    expected = NativeSampler().sample(plain, prompts, 4, params, 0)
    same(NativeSampler().sample(checkpointed, prompts, 4, params, 0), expected)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_take_part_in_sampling(tiny, ask, dora):
    """Merged into the fused weights, or left to peft where they cannot be."""
    policy = tiny(lora={"r": 4, "lora_alpha": 64, "use_dora": dora})
    prompts, params = ask(policy, TEXTS), SamplingParams(8)
    before = NativeSampler().sample(policy, prompts, 4, params, 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in policy.trainable_state().items():
            if "lora_" in name:
                p.normal_(std=0.05)
    after = NativeSampler().sample(policy, prompts, 4, params, 0)
    assert not torch.equal(before.token_ids, after.token_ids)
    gap_to_policy(policy, after, 1e-5)
    with policy.base_weights():
        same(NativeSampler().sample(policy, prompts, 4, params, 0), before)


def gap_to_policy(policy, rollouts, limit):
    with torch.no_grad():
        ours = policy.log_probs(rollouts.sequences(torch.arange(len(rollouts)))).log_probs
    torch.testing.assert_close(rollouts.log_probs[:, : ours.shape[1]], ours, atol=limit, rtol=0)


@pytest.mark.parametrize(
    ("num_samples", "params", "message"),
    [
        (0, SamplingParams(), "num_samples is 0"),
        (1, SamplingParams(0), "max_new_tokens is 0"),
        (1, SamplingParams(temperature=-1), "temperature is -1"),
        (1, SamplingParams(top_p=0), "top_p is 0"),
        (1, SamplingParams(top_p=1.5), "top_p is 1.5"),
        (1, SamplingParams(top_k=-1), "top_k is -1"),
        (
            1,
            SamplingParams(60),
            "a prompt of 17 tokens and max_new_tokens 60 exceed the model's 64",
        ),
    ],
)
def test_mistakes_are_one_line(tiny, ask, num_samples, params, message):
    policy = tiny("gpt2")
    with pytest.raises(UserError) as caught:
        NativeSampler().sample(policy, ask(policy, TEXTS), num_samples, params, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_prompt_and_no_place_are_refused(tiny):
    with pytest.raises(UserError, match="prompt 0 has no tokens"):
        NativeSampler().sample(tiny(), Prompts((Prompt((), ""),), (0,)), 1, SamplingParams(), 0)
    with pytest.raises(UserError, match="max_concurrent must be at least 1, not 0"):
        NativeSampler(0)


def test_diverged_weights_are_reported(tiny, ask):
    policy = tiny()
    with torch.no_grad():
        policy.causal_lm.lm_head.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="training diverged"):
        NativeSampler().sample(policy, ask(policy, TEXTS), 2, SamplingParams(4), 0)


def test_the_longest_request_that_fits_is_accepted(tiny, ask):
    policy = tiny("gpt2")
    limit = 64 - max(len(text) for text in TEXTS)
    rollouts = NativeSampler().sample(policy, ask(policy, TEXTS), 1, SamplingParams(limit), 0)
    assert rollouts.mask.shape == (4, limit)
