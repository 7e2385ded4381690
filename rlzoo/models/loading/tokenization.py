"""Text to ids and back: the character tokenizer of tiny models, encoding and decoding."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rlzoo.errors import UserError, first_line

DEFAULT_CHARACTERS = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    " \n+-*/=<>()[]{}.,:;!?'\"_#%&|^$@~`\\"
)


def character_tokenizer(characters: str) -> Any:
    """Build a tokenizer with one id per character, after ``<pad>`` (0) and ``<eos>`` (1).

    Args:
        characters: The alphabet; repeated characters count once.

    Returns:
        A transformers fast tokenizer that survives ``save_pretrained``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {name: i for i, name in enumerate(["<pad>", "<eos>", *dict.fromkeys(characters)])}
    core = Tokenizer(models.WordLevel(vocabulary))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(source: str) -> Any:
    """Load the tokenizer of a local folder or hub id, without weights.

    Args:
        source: Folder or hub id.

    Returns:
        A transformers tokenizer.

    Raises:
        UserError: If nothing loadable is there.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=os.path.isdir(source))
    except Exception as error:
        raise UserError(
            f"tokenizer '{source}' cannot be loaded ({first_line(error)}); give a folder that "
            "holds tokenizer.json, a hub id that can be reached, or `characters`"
        ) from error


def encode(tokenizer: Any, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
    """Turn a plain string or chat messages into the ids a model is fed.

    There is exactly one BOS where the tokenizer or the template has one, and no EOS at the end of a
    plain string.

    Args:
        tokenizer: A transformers tokenizer.
        prompt: Text, or messages ``[{"role": ..., "content": ...}, ...]``.

    Returns:
        Token ids, at least one.

    Raises:
        UserError: If the prompt is empty, holds a character the tokenizer lacks, or is a chat
            without a chat template.
    """
    if isinstance(prompt, str):
        ids = _encode_text(tokenizer, prompt)
    elif getattr(tokenizer, "chat_template", None):
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in prompt],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )["input_ids"]
    else:
        raise UserError(
            "the prompt is a list of chat messages but the tokenizer has no chat template; give "
            "plain strings, or set `chat_template` in its tokenizer_config.json"
        )
    bos = tokenizer.bos_token_id
    while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
        ids = ids[1:]
    if not ids:
        raise UserError(f"prompt {prompt!r} has no tokens; a prompt needs at least one")
    return [int(i) for i in ids]


def _encode_text(tokenizer: Any, prompt: str) -> list[int]:
    try:
        ids = list(tokenizer(prompt)["input_ids"])
    except Exception as error:
        vocabulary = tokenizer.get_vocab()
        missing = [character for character in prompt if character not in vocabulary]
        if "[UNK]" not in str(error) or not missing:
            raise
        raise UserError(
            f"prompt {prompt!r}: character {missing[0]!r} is not in the tokenizer; add it to "
            "`characters`"
        ) from error
    eos = tokenizer.eos_token_id
    if eos is not None and ids[-1:] == [eos] and not prompt.endswith(tokenizer.eos_token):
        ids = ids[:-1]
    return ids


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Turn ids into text, special tokens left out; half a character becomes U+FFFD.

    Args:
        tokenizer: A transformers tokenizer.
        ids: Token ids; those beyond the tokenizer's vocabulary are left out.

    Returns:
        A string that can always be written as UTF-8.
    """
    size = len(tokenizer)
    known = [int(i) for i in ids if 0 <= int(i) < size]
    text = tokenizer.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text).encode("utf-8", "replace").decode("utf-8")
