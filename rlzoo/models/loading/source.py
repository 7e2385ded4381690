"""The source of a model: everything that can be known before its weights are loaded."""

from __future__ import annotations

import copy
import logging
import os
from functools import cached_property
from typing import Any

import torch

from rlzoo.errors import UserError, first_line
from rlzoo.models.loading import configs, files, tokenization
from rlzoo.models.loading.caches import bound_caches

logger = logging.getLogger(__name__)

SAMPLING = (
    "temperature",
    "top_",
    "min_p",
    "typical",
    "repetition",
    "no_repeat",
    "do_sample",
    "num_beams",
)
"""Beginnings of the generation_config keys that change how answers are drawn."""


class Source:
    """A model's config, tokenizer and special ids, and the way to its weights.

    ``owner`` is the class name for error messages; the other arguments are those of `Policy`.
    """

    def __init__(
        self,
        owner: str,
        path: str | None,
        config: dict[str, Any] | None,
        tokenizer: str | None,
        gguf_file: str | None,
        characters: str | None,
    ) -> None:
        if (path is None) == (config is None):
            raise UserError(
                f"{owner}: give exactly one of `path` ({path!r}) and `config` ({config!r})"
            )
        if characters is not None and (tokenizer is not None or path is not None):
            raise UserError(f"{owner}: `characters` goes with `config` and no `tokenizer`; drop it")
        if gguf_file is not None and path is None:
            raise UserError(f"{owner}: gguf_file {gguf_file!r} needs `path`, the folder it is in")
        self.owner, self.path, self.config, self.gguf_file = owner, path, config, gguf_file
        self._tokenizer, self._characters = tokenizer, characters
        self.options: dict[str, Any] = {}  # more keywords of transformers' loaders

    @cached_property
    def folder(self) -> str:
        """Folder or hub id to load from; a GGUF file is converted on the way."""
        folder, gguf = files.locate(str(self.path), self.gguf_file)
        return str(files.convert_gguf(gguf)) if gguf else folder

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        if self._tokenizer is not None:
            return tokenization.load_tokenizer(self._tokenizer)
        if self.path is not None:
            return tokenization.load_tokenizer(self.folder)
        return tokenization.character_tokenizer(self._characters or tokenization.DEFAULT_CHARACTERS)

    @cached_property
    def hf_config(self) -> Any:
        """The transformers config, every source of randomness set to 0."""
        if self.path is not None:
            config = configs.load_config(self.folder)
        else:
            config = configs.build_config(self.config or {}, self.tokenizer)
        for part in (config, config.get_text_config()):
            configs.silence_noise(part)
        return config

    @cached_property
    def generation_config(self) -> Any:
        """What the checkpoint says about sampling; only its EOS ids are used."""
        from transformers import GenerationConfig

        try:
            return (
                GenerationConfig.from_pretrained(self.folder) if self.path else GenerationConfig()
            )
        except OSError:
            return GenerationConfig()

    @cached_property
    def ignored_sampling(self) -> dict[str, Any]:
        """What the checkpoint would have changed about sampling, had it been asked."""
        diff: dict[str, Any] = self.generation_config.to_diff_dict()
        return {k: v for k, v in diff.items() if k.startswith(SAMPLING)}

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        config = self.hf_config
        owners = (self.tokenizer, config, config.get_text_config(), self.generation_config)
        found = [getattr(owner, "eos_token_id", None) for owner in owners]
        lists = [ids if isinstance(ids, list | tuple) else [ids] for ids in found]
        return frozenset(int(i) for ids in lists for i in ids if i is not None)

    def check(self) -> None:
        """Read everything but the weights; a GGUF file is not converted here.

        Raises:
            UserError: If the folder, config or tokenizer is missing, or they do not match.
        """
        if self.pending_gguf():
            return
        size = getattr(self.hf_config.get_text_config(), "vocab_size", None)
        if size is not None and size < len(self.tokenizer):
            raise UserError(
                f"{self.owner}: the tokenizer has {len(self.tokenizer)} tokens but the model "
                f"{size}; give the tokenizer the model was trained with"
            )
        if self.ignored_sampling:
            logger.info("not used of %s's own settings: %s", self.path, self.ignored_sampling)
            self.ignored_sampling = {}  # said once

    def pending_gguf(self) -> bool:
        """Say whether a GGUF file has yet to be converted, after checking that it can be.

        Returns:
            True if loading will convert it.
        """
        gguf = files.locate(self.path, self.gguf_file)[1] if self.path is not None else None
        if gguf is None or files.converted_folder(gguf).is_dir():
            return False
        files.require_gguf(gguf)
        return True

    def weights(self, dtype: str, attention: str, seed: int) -> Any:
        """Build or load the model, in evaluation mode, without adapters.

        Args:
            dtype: Type of the weights.
            attention: Attention kernel.
            seed: Seed of new weights.

        Returns:
            A transformers causal language model.

        Raises:
            UserError: If that fails.
        """
        from transformers import AutoModelForCausalLM

        bound_caches()
        config = copy.deepcopy(self.hf_config)
        options: dict[str, Any] = {"dtype": getattr(torch, dtype), **self.options}
        if attention != "sdpa":  # transformers' default, which some families replace by eager
            options["attn_implementation"] = attention
        try:
            if self.path is None:
                with configs.seeded(seed):
                    return AutoModelForCausalLM.from_config(config, **options)
            local = os.path.isdir(self.folder)
            return AutoModelForCausalLM.from_pretrained(
                self.folder, config=config, local_files_only=local, **options
            )
        except (OSError, ValueError, ImportError) as error:
            what = self.path or config.model_type
            why = first_line(error)
            raise UserError(f"{self.owner}: '{what}' cannot be loaded: {why}") from error
