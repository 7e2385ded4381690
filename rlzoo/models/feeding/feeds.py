"""Feeds: rules that lay sequences out for a decoder, and what each costs in tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlzoo.errors import UserError
from rlzoo.models.feeding import dense_attention, flash_attention, flex_attention
from rlzoo.models.feeding.layout import Layout, padded, shared
from rlzoo.models.feeding.trunk import accepts, compute_dtype, hidden_states
from rlzoo.types import Sequences

# Mean difference of hidden states, as a share of their size, that is still rounding.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
_WINDOWS = ("sliding_window", "attention_chunk_size")
_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
_TRIAL = 12  # tokens of the longest trial row; a shorter window could not be tried out
_ABLE = ("sdpa", flash_attention.NAME, flex_attention.NAME)


@dataclass(frozen=True)
class Load:
    """What some rows bring, as far as counting fed tokens goes.

    Attributes:
        rows: Their number.
        longest: Tokens of the longest, prompt and answer.
        answers: Tokens of all answers.
        prompts: Tokens of each distinct prompt, by its group.
    """

    rows: int
    longest: int
    answers: int
    prompts: Mapping[int, int]

    @classmethod
    def of(cls, group: int, prompt: int, answer: int) -> Load:
        """Return what one row brings.

        Args:
            group: A number that rows with the same prompt share.
            prompt: Tokens of its prompt.
            answer: Tokens of its answer.

        Returns:
            A load of one row.
        """
        return cls(1, prompt + answer, answer, {group: prompt})

    def __add__(self, other: Load) -> Load:
        return Load(
            self.rows + other.rows,
            max(self.longest, other.longest),
            self.answers + other.answers,
            {**self.prompts, **other.prompts},
        )


class Feed(ABC):
    """A rule from sequences to layouts, and the number of tokens it feeds.

    Attributes:
        shares: Whether rows with the same prompt cost less together.
    """

    shares = False

    @abstractmethod
    def layout(self, sequences: Sequences) -> Layout:
        """Lay sequences out.

        Args:
            sequences: n rows.

        Returns:
            What the decoder is fed.
        """

    @abstractmethod
    def tokens(self, load: Load) -> int:
        """Count the tokens that rows take together, padding included.

        Args:
            load: The rows.

        Returns:
            Tokens.
        """


class PaddedFeed(Feed):
    """Every row by itself, padded on the right to the longest."""

    def layout(self, sequences: Sequences) -> Layout:
        """Lay sequences out; see `Feed.layout`."""
        return padded(sequences)

    def tokens(self, load: Load) -> int:
        """Count rows times the longest; see `Feed.tokens`."""
        return load.rows * load.longest


@dataclass(frozen=True)
class SharedFeed(Feed):
    """All rows in one line without padding, each distinct prompt once.

    Attributes:
        width: H, the hidden size.
        window: Longest row that full causal attention is right for, or None; beyond it rows are
            padded.
        pieces: Who sees whom, in the form that the decoder's attention takes.
    """

    width: int
    window: int | None = None
    pieces: type[dense_attention.Pieces] = dense_attention.Pieces
    shares = True

    def layout(self, sequences: Sequences) -> Layout:
        """Lay sequences out; see `Feed.layout`."""
        if self._fits(sequences.input_ids.shape[1]):
            return shared(sequences, self.pieces(self.width))
        return padded(sequences)

    def tokens(self, load: Load) -> int:
        """Count answers, and each distinct prompt once; see `Feed.tokens`."""
        if self._fits(load.longest):
            return load.answers + sum(load.prompts.values())
        return PaddedFeed().tokens(load)

    def _fits(self, row: int) -> bool:
        return self.window is None or row <= self.window


def take_segments(trunk: Any) -> None:
    """Let a decoder's attention take segments; without them it stays what it was.

    Args:
        trunk: A transformers decoder.
    """
    if obstacle(trunk) is not None:
        return
    kernel = trunk.config._attn_implementation
    if kernel == flash_attention.NAME:
        flash_attention.register()
    elif kernel != flex_attention.NAME:
        dense_attention.register()
        trunk.config._attn_implementation = dense_attention.NAME


def choose(trunk: Any, asked: str) -> tuple[Feed, str]:
    """Find the fastest way that gives a decoder's own numbers.

    Args:
        trunk: A transformers decoder, prepared.
        asked: ``padded``, or ``auto`` for the fastest that is exact.

    Returns:
        The rule, and a sentence about it.

    Raises:
        UserError: If the attention cannot train where the weights are.
    """
    kernel = getattr(getattr(trunk, "config", None), "_attn_implementation", None)
    if kernel == flex_attention.NAME and next(trunk.parameters()).device.type == "cpu":
        raise UserError(
            f"policy.attention {kernel} has no backward pass on CPU; use sdpa, or a CUDA GPU"
        )
    reason = "the setting says so" if asked == "padded" else obstacle(trunk)
    if reason is None:
        windows = [getattr(trunk.config, name, None) for name in _WINDOWS]
        window = min((size for size in windows if size is not None), default=None)
        pieces = (
            flash_attention.RaggedPieces
            if kernel == flash_attention.NAME
            else dense_attention.Pieces
        )
        feed = SharedFeed(trunk.config.hidden_size, window, pieces)
        reason = difference(trunk, feed)
        if reason is None:
            beyond = "" if window is None else f"; rows over {window} tokens are padded"
            return feed, "no padding, and each prompt once for all of its answers" + beyond
    return PaddedFeed(), f"padded, because {reason}"


def obstacle(trunk: Any) -> str | None:
    """Name what is known beforehand to keep a decoder from taking sequences in one line.

    Args:
        trunk: A transformers decoder.

    Returns:
        A reason, or None.
    """
    config = getattr(trunk, "config", None)
    kernel = getattr(config, "_attn_implementation", None)
    if kernel not in (*_ABLE, dense_attention.NAME):
        return f"its attention is {kernel}, and sharing prompts needs one of {', '.join(_ABLE)}"
    if not accepts(trunk, "position_ids"):
        return "it takes no position ids"
    window = min(getattr(config, name, None) or _TRIAL for name in _WINDOWS)
    if window < _TRIAL:
        return f"its window is {window} tokens"
    other = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    return f"it has layers of type {min(other)}" if other else None


@torch.no_grad()
def difference(trunk: Any, feed: Feed) -> str | None:
    """Compare a rule with plain rows on a few tokens.

    Args:
        trunk: A transformers decoder.
        feed: The rule.

    Returns:
        What is wrong, or None.
    """
    sequences = _trial(trunk)
    modes = [(module, module.training) for module in trunk.modules()]
    trunk.eval()
    try:
        plain = hidden_states(trunk, padded(sequences)).float()
        ours = hidden_states(trunk, feed.layout(sequences)).float()
    except (ValueError, TypeError, RuntimeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        for module, training in modes:
            module.training = training
    weight = next(trunk.parameters())
    allowed = _TOLERANCE.get(compute_dtype(weight.device, weight.dtype), 3e-2)
    apart = float((ours - plain).abs().mean() / plain.abs().mean())
    return None if apart <= allowed else f"without padding its states differ by {apart:.0e}"


def _trial(trunk: Any) -> Sequences:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(trunk.config.vocab_size, (4, _TRIAL), generator=generator)
    ids[1:3, :5] = ids[0, :5]
    prompts, answers = torch.tensor([5, 5, 5, 3]), torch.tensor([[4], [7], [1], [6]])
    mask: Tensor = torch.arange(7) < answers
    device = next(trunk.parameters()).device
    return Sequences(ids.to(device), prompts.to(device), mask.to(device))
