"""Text to ids and back."""

import pytest
from tiny_models import DENSE

from rlzoo.errors import UserError
from rlzoo.models import DensePolicy
from rlzoo.models.loading.tokenization import (
    DEFAULT_CHARACTERS,
    character_tokenizer,
    decode,
    encode,
)


def byte_tokenizer(bos=True, chat_template=None):
    """A tokenizer over bytes with <s> and </s>, without pad, that adds <s> if asked."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate(["<s>", "</s>", *alphabet])}
    core = Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if bos:
        core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = chat_template
    return tokenizer


def test_characters_round_trip_through_a_saved_folder(tmp_path):
    from transformers import AutoTokenizer

    policy = DensePolicy(config=DENSE["qwen3"])
    ids = policy.encode(DEFAULT_CHARACTERS)
    assert ids == list(range(2, 2 + len(DEFAULT_CHARACTERS)))
    policy.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.pad_token_id, again.eos_token_id, again.padding_side) == (0, 1, "left")
    assert encode(again, "a b\n+") == policy.encode("a b\n+")
    assert decode(again, [*encode(again, "a b\n+"), 1, 0, 0]) == "a b\n+"


def test_an_unknown_character_is_named(tmp_path):
    from transformers import AutoTokenizer

    character_tokenizer("ab").save_pretrained(tmp_path)
    for tokenizer in (character_tokenizer("ab"), AutoTokenizer.from_pretrained(tmp_path)):
        with pytest.raises(UserError, match="character 'c' is not in the tokenizer"):
            encode(tokenizer, "abc")


def test_an_empty_prompt_is_refused():
    with pytest.raises(UserError, match="no tokens"):
        encode(character_tokenizer("ab"), "")


def test_prm02_a_plain_string_has_exactly_one_bos():
    """PRM-02: also where the text itself already starts with it."""
    tokenizer = byte_tokenizer()
    assert encode(tokenizer, "hi") == encode(tokenizer, "<s>hi")
    assert encode(tokenizer, "hi").count(0) == 1
    assert 0 not in encode(byte_tokenizer(bos=False), "hi")


def test_prm02_a_template_that_writes_bos_gives_exactly_one():
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = byte_tokenizer(chat_template=template)
    ids = encode(tokenizer, [{"role": "user", "content": "hi"}])
    assert ids.count(0) == 1
    assert decode(tokenizer, ids) == "user:hi;assistant:"


def test_prm03_chat_without_a_template_is_refused():
    with pytest.raises(UserError, match="no chat template"):
        encode(byte_tokenizer(), [{"role": "user", "content": "hi"}])


def test_prm03_without_a_pad_token_eos_pads_and_nothing_is_resized(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path)
    policy = DensePolicy(config=DENSE["qwen3"], tokenizer=str(tmp_path))
    policy.load()
    assert policy.tokenizer.pad_token_id is None
    assert policy.pad_id == 1
    assert policy.eos_ids == {1}
    assert policy.causal_lm.get_input_embeddings().weight.shape[0] == len(policy.tokenizer)


def test_a_tokenizer_that_appends_eos_does_not_end_the_prompt():
    from tokenizers import processors

    tokenizer = byte_tokenizer(bos=False)
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", 1)]
    )
    assert tokenizer("hi")["input_ids"][-1] == 1
    assert 1 not in encode(tokenizer, "hi")
    assert encode(tokenizer, "hi</s>")[-1] == 1


def test_lp11_half_a_character_is_still_text():
    """LP-11: an answer cut inside a multibyte character gives a str that UTF-8 can write."""
    tokenizer = byte_tokenizer(bos=False)
    ids = encode(tokenizer, "é")
    assert len(ids) == 2
    assert decode(tokenizer, ids) == "é"
    assert decode(tokenizer, ids[:1]).encode("utf-8") == "\ufffd".encode()


def test_ids_beyond_the_tokenizer_are_left_out():
    """Models often have more rows of embeddings than the tokenizer has tokens."""
    tokenizer = character_tokenizer("ab")
    assert decode(tokenizer, [2, 999, 3, -1]) == "ab"
