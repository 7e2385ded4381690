"""The policy: weights, tokenizer, and the one function that gives tokens their log-probs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor
from typing_extensions import Self

from rlzoo.errors import UserError
from rlzoo.models.feeding.feeds import Feed, PaddedFeed, choose
from rlzoo.models.feeding.layout import Layout, response_slots
from rlzoo.models.feeding.trunk import accepts, hidden_states
from rlzoo.models.loading import tokenization
from rlzoo.models.loading.lora import check_lora
from rlzoo.models.loading.source import Source
from rlzoo.models.log_probs import scatter
from rlzoo.models.weights import Weights
from rlzoo.types import LogProbs, Sequences
from rlzoo.types.expert_choices import RouterSettings, RouterSizes

log = logging.getLogger("rlzoo")


class Policy(Weights):
    """One Hugging Face causal language model and its tokenizer.

    The constructor only checks and stores; `load` builds the weights. Every dropout and router
    jitter is set to 0, so that two passes over the same tokens give the same numbers.

    Args:
        path: Local Hugging Face folder, hub id, folder of a GGUF file, or ``package:NAME`` for an
            installed package that ships one. Give this or `config`.
        config: Hugging Face config with its ``model_type``, to build a model from scratch. The
            vocabulary size and special ids come from the tokenizer.
        tokenizer: Folder or hub id of the tokenizer, where it is not the model's own.
        gguf_file: Name of the GGUF file in `path`; it is dequantized once and cached.
        dtype: Type of the weights; in one process and under DDP the optimizer of bfloat16 weights
            moves float32 values of them.
        attention: Attention kernel, as transformers names them (sdpa, eager, flash_attention_2, and
            flex_attention on GPUs); sdpa becomes eager where a family needs it.
        layout: auto feeds each prompt once for all of its answers and no padding where that gives
            the same numbers, and says so; padded feeds every row by itself.
        gradient_checkpointing: Recompute activations in the backward pass to save memory.
        lora: Train low-rank adapters instead of the weights: keys of peft's LoraConfig, such as
            ``{r: 16, lora_alpha: 32}``. Needs the `lora` extra.
        characters: Alphabet of a character tokenizer for a model built from `config`. The default,
            where no tokenizer is named either, is digits, letters, space, newline and punctuation.
        init_seed: Seed of the weights of a model built from `config`, and of adapters.
    """

    router: RouterSettings = RouterSettings(statistics=False)

    def __init__(
        self,
        path: str | None = None,
        config: dict[str, Any] | None = None,
        tokenizer: str | None = None,
        gguf_file: str | None = None,
        dtype: Literal["float32", "bfloat16"] = "float32",
        attention: str = "sdpa",
        layout: Literal["auto", "padded"] = "auto",
        gradient_checkpointing: bool = False,
        lora: dict[str, Any] | None = None,
        characters: str | None = None,
        init_seed: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if dtype not in ("float32", "bfloat16"):
            raise UserError(f"{name}: dtype {dtype!r} is unknown; use float32 or bfloat16")
        if layout not in ("auto", "padded"):
            raise UserError(f"{name}: layout {layout!r} is unknown; use auto or padded")
        if lora is not None:
            check_lora(lora)
        self.source = Source(name, path, config, tokenizer, gguf_file, characters)
        self.dtype, self.attention, self.lora = dtype, attention, lora
        self.gradient_checkpointing, self.init_seed = gradient_checkpointing, init_seed
        self.layout, self._feed = layout, cast("Feed | None", None)
        self._frozen = False
        self.model: Any = None

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer: the tokenizer's, the config's and generation_config's."""
        return self.source.eos_ids

    @property
    def pad_id(self) -> int:
        """The id that fills masked slots: the tokenizer's pad, else its EOS. Never a mask."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else min(self.eos_ids, default=0)

    @property
    def max_length(self) -> int | None:
        """Longest prompt + answer the positions allow, or None where there is no bound."""
        return getattr(self.source.hf_config.get_text_config(), "max_position_embeddings", None)

    @property
    def router_sizes(self) -> RouterSizes | None:
        """Layers and experts of a loaded mixture of experts, None for a dense model."""
        return None

    def sibling(self, path: str) -> Self:
        """Return a policy like this one, not loaded, with the weights of another folder."""
        return type(self)(path=path, dtype=self.dtype, layout=self.layout)

    @contextmanager
    def noting_experts(self) -> Iterator[Callable[[], Tensor | None]]:
        """Note the experts of every pass inside, which may call the layers one by one.

        Yields:
            What returns the (tokens, L, k) experts of the last pass; None if there are none.
        """
        yield lambda: None

    def encode(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Turn a plain string or chat messages into the ids the model is fed.

        Args:
            prompt: Text, or messages ``[{"role": ..., "content": ...}, ...]``.

        Returns:
            Token ids with at most one BOS, ready to be continued.
        """
        return tokenization.encode(self.tokenizer, prompt)

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens left out.

        Args:
            ids: Token ids.

        Returns:
            Valid text, whatever the ids.
        """
        return tokenization.decode(self.tokenizer, ids)

    def log_probs(
        self, sequences: Sequences, temperature: float = 1.0, entropy: bool = False
    ) -> LogProbs:
        """Give each masked-in response token its log-probability, in fp32.

        ``log softmax(logits / temperature)`` at the token. New, old and reference log-probs all
        come from here and from nowhere else.

        Args:
            sequences: n rows.
            temperature: The one that the answers were sampled at.
            entropy: Whether to return the entropy of the next-token distribution too.

        Returns:
            LogProbs, (n, T); masked slots are 0.

        Raises:
            UserError: If the temperature is not above 0.
        """
        return cast(LogProbs, self(sequences, temperature, entropy))

    def forward(self, sequences: Sequences, temperature: float, entropy: bool) -> LogProbs:
        """Do the work of `log_probs`, through the hooks that strategies put on a module."""
        if temperature <= 0:
            raise UserError(
                f"temperature must be > 0 for rollouts and scoring, not {temperature}; greedy "
                "decoding is for evaluation only"
            )
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen):
            hidden = self.hidden_states(self.layout_of(sequences))
            rows, _, columns = response_slots(sequences)
            targets = sequences.input_ids[rows, columns]
            log_probs, entropies = self.token_log_probs(hidden, targets, temperature, entropy)
            mask = sequences.mask
            full = None if entropies is None else scatter(entropies, mask)
            return LogProbs(scatter(log_probs, mask), full, hidden)

    @property
    def feed(self) -> Feed:
        """How sequences are fed; padded until the first pass has found a faster exact way."""
        return self._feed or PaddedFeed()

    def layout_of(self, sequences: Sequences) -> Layout:
        """Lay sequences out in the way that fits the decoder, which the first call finds out."""
        return self.settled_feed().layout(sequences)

    def settled_feed(self) -> Feed:
        """Find out how to feed the decoder, once; a strategy asks before it shards the weights.

        Later the trial would be forward passes that other ranks, which know already, do not make.
        """
        if self._feed is None:
            self._feed, why = choose(self.causal_lm.base_model, self.layout)
            if not self._frozen:
                log.info("layout: %s", why)
        return self._feed

    def hidden_states(self, layout: Layout) -> Tensor:
        """Run the decoder without its LM head.

        Args:
            layout: What it is fed.

        Returns:
            (M, H) final hidden states that predict the response tokens.
        """
        return hidden_states(self.causal_lm.base_model, layout)

    def new_cache(self) -> Any:
        """Return an empty key-value cache for `step`."""
        from transformers import DynamicCache

        return DynamicCache(config=self.causal_lm.config.get_text_config())

    def step(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, cache: Any
    ) -> Tensor:
        """Feed left-padded tokens and return the next token's logits, to be used in `generating`.

        Args:
            input_ids: (rows, new) long.
            attention_mask: (rows, past + new) long, 0 at padding.
            position_ids: (rows, new) long, counted without the padding.
            cache: From `new_cache`; grows in place.

        Returns:
            (rows, V) fp32 logits, untouched by temperature.
        """
        model = self.causal_lm
        # transformers 5.24 renamed past_key_values to cache.
        name = "cache" if accepts(model, "cache") else "past_key_values"
        kwargs = {name: cache, "position_ids": position_ids, "logits_to_keep": 1}
        kwargs = {k: v for k, v in kwargs.items() if k == name or accepts(model, k)}
        output = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=True, **kwargs)
        return cast(Tensor, output.logits[:, -1].float())
