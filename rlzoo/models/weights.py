"""The life of a model's weights: loading, modes, copies, saving."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError
from rlzoo.models.feeding.feeds import take_segments
from rlzoo.models.head import linear_log_probs, plain_weight
from rlzoo.models.loading.configs import noise
from rlzoo.models.loading.lora import add_adapters
from rlzoo.models.loading.source import Source
from rlzoo.models.log_probs import CHUNK_FLOATS, logit_transform, token_log_probs


class Weights(Recorded, nn.Module, ABC):
    """What a `Policy` is apart from text and numbers: weights, their mode, source and copies.

    Attributes:
        source: Where config, tokenizer and weights come from.
        dtype: Type of the weights.
        attention: Attention kernel.
        layout: How sequences are fed to the decoder.
        gradient_checkpointing: Whether activations are recomputed in the backward pass.
        lora: Settings of the adapters, or None.
        init_seed: Seed of new weights.
        model: The transformers or peft model; None before `load`.
        lockstep: Whether a forward pass needs every rank, as it does where a strategy shards the
            weights: sampling then keeps the ranks in step.
        while_generating: What a strategy that shards the weights does around the rollout.
    """

    source: Source
    dtype: Literal["float32", "bfloat16"]
    attention: str
    layout: Literal["auto", "padded"]
    gradient_checkpointing: bool
    lora: dict[str, Any] | None
    init_seed: int
    model: Any
    lockstep: bool = False
    while_generating: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)
    _frozen: bool

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; loading it loads no weights."""
        return self.source.tokenizer

    @abstractmethod
    def check_family(self, config: Any) -> None:
        """Refuse a Hugging Face config that this class is not made for.

        Args:
            config: The model's text config.

        Raises:
            UserError: Naming the class to use.
        """

    def check(self) -> None:
        """Read everything but the weights, so that a wrong setting is refused before heavy work.

        Raises:
            UserError: If the folder, config or tokenizer is missing, or of the wrong family.
        """
        self.source.check()
        if not self.source.pending_gguf():
            self.check_family(self.source.hf_config.get_text_config())

    def load(self) -> None:
        """Build or load the weights; does nothing the second time.

        Raises:
            UserError: If they cannot be loaded, or the family changes its logits in a way that
                `log_probs` does not know.
        """
        if self.model is not None:
            return
        self.check()
        model = self.source.weights(self.dtype, self.attention, self.init_seed)
        self.check_family(model.config.get_text_config())
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        self.prepare(model)
        if self.layout == "auto":
            take_segments(model.base_model)
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable(self.checkpoint_options)
        if self.lora is not None:
            model = add_adapters(model, self.lora, self.init_seed)
        self.model = model
        self._check_head()

    def prepare(self, model: Any) -> None:
        """Change a model that has just been loaded, before adapters are put on it.

        Args:
            model: The transformers model.
        """

    @property
    def checkpoint_options(self) -> dict[str, Any]:
        """How layers are recomputed under `gradient_checkpointing`."""
        return {"use_reentrant": False}

    def describe(self) -> list[str]:
        """Return what a run says about the model at its start, beside its size."""
        return []

    def _check_head(self) -> None:
        model, seen = self.causal_lm, []
        if any(p.is_meta or not p.numel() for p in model.parameters()):
            return
        hook = model.base_model.register_forward_hook(lambda *call: seen.append(call[2][0]))
        try:
            with self.generating():
                ids = torch.arange(2, device=self.device)[None]
                logits = model(input_ids=ids, use_cache=False).logits.float()
                ours = self._head(seen[0]).float()
        finally:
            hook.remove()
        if not torch.allclose(logits, ours, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
            raise UserError(
                f"{type(self).__name__}: model_type '{model.config.model_type}' changes its logits "
                "after the LM head in a way rlzoo does not know; use another family"
            )

    @property
    def causal_lm(self) -> Any:
        """The transformers model itself, adapters included; `load` comes first."""
        if self.model is None:
            raise RuntimeError(f"{type(self).__name__}.load() has not been called")
        return self.model.get_base_model() if self.lora is not None else self.model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def _head(self, hidden: Tensor) -> Tensor:
        model = self.causal_lm
        transform = logit_transform(model.config.get_text_config())
        return transform(model.get_output_embeddings()(hidden))

    def token_log_probs(
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Give one target per hidden state its log-probability, the fastest way there is.

        Args:
            hidden: (M, H).
            targets: (M,) long.
            temperature: Divides the logits.
            entropy: Whether to return the entropy too.

        Returns:
            (M,) log-probs and (M,) entropy in nats, or None, both fp32.
        """
        config = self.causal_lm.config.get_text_config()
        chunk = max(1, CHUNK_FLOATS // config.vocab_size)
        weight = plain_weight(self.causal_lm.get_output_embeddings())
        transform = logit_transform(config)
        if weight is None or entropy or transform.cap is not None:
            return token_log_probs(
                hidden, targets, self._head, temperature=temperature, entropy=entropy, chunk=chunk
            )
        scale = temperature / transform.scale
        return linear_log_probs(hidden, weight, targets, scale, chunk), None

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen copy stays in evaluation mode.

        Args:
            mode: Training or not.

        Returns:
            Itself.
        """
        return super().train(mode and not self._frozen)

    def training_mode(self) -> None:
        """Set training mode, which no library does for us, and make sure nothing random is left."""
        self.train()
        noisy = noise(self.causal_lm)
        assert not noisy, f"dropout or jitter is on: {noisy}"

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Evaluate without gradients, then put every module's mode back.

        Evaluation mode also turns gradient checkpointing off, which would drop the cache. Never
        `inference_mode`: its tensors cannot be trained on.

        Yields:
            Nothing.
        """
        before = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            with self.while_generating(), torch.no_grad():
                yield
        finally:
            for module, training in before:
                module.training = training

    @contextmanager
    def base_weights(self) -> Iterator[None]:
        """Turn the adapters off: inside, `log_probs` asks the model that they started from.

        Yields:
            Nothing.

        Raises:
            UserError: If there are no adapters.
        """
        if self.lora is None:
            raise UserError(f"{type(self).__name__}: there are no adapters to turn off; set `lora`")
        with self.model.disable_adapter():
            yield

    def frozen_copy(self) -> Self:
        """Return a deep copy that is never trained: no gradients, and always in evaluation mode."""
        clone = copy.deepcopy(self)
        clone._frozen = True
        clone.requires_grad_(False)
        return clone.eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a Hugging Face folder, adapters merged and tokenizer included.

        Args:
            folder: Where to.
        """
        model = copy.deepcopy(self.model).merge_and_unload() if self.lora else self.causal_lm
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def trainable_state(self) -> dict[str, Tensor]:
        """Return the parameters that train, by name: the adapters alone where there are any."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy values into the parameters that train.

        Args:
            state: From `trainable_state` of a policy of the same shape.

        Raises:
            UserError: If the names or shapes differ.
        """
        own = self.trainable_state()
        wrong = [k for k in own.keys() | state.keys() if k not in own or k not in state]
        wrong = wrong or [k for k in own if own[k].shape != state[k].shape]
        if wrong:
            raise UserError(
                f"{type(self).__name__}: weights of another model: '{min(wrong)}' does not match; "
                "use the settings they were made with"
            )
        for name, value in state.items():
            own[name].copy_(value)
