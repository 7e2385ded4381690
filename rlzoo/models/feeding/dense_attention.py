"""Causal attention over sequences that stand in one line and share their prompts.

Every linear layer sees each token once; only here does a row meet its prompt again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "rlzoo"
_MASK_LIMIT = (
    2**22
)  # entries of the largest mask that is built for answers longer than their prompt
Piece = tuple[Sequence[int], Sequence[int]]
# Query-key pairs times hidden width that cost about as much as one more attention call.
_CALL_PAIRS = {"cpu": 2**20, "cuda": 2**30}


@dataclass(frozen=True)
class Block:
    """Segments that go through one attention call, padded to the longest.

    Attributes:
        count: n, segments.
        queries: Fed tokens that ask.
        keys: Fed tokens that they see, themselves last; as many where nothing stands before.
        seen: (n or 1, 1, queries, keys) bool, or None where plain causal attention is meant.
    """

    count: int
    queries: int
    keys: int
    seen: Tensor | None


@dataclass(frozen=True)
class Segments:
    """Which fed token sees which, as gathers around dense attention calls.

    Attributes:
        queries: (queries,) long, the fed token behind each padded query slot.
        keys: (keys,) long, likewise for keys and values.
        blocks: The calls, in the order of those slots.
        answers: (l,) long, the query slot whose result belongs to each fed token.
    """

    queries: Tensor
    keys: Tensor
    blocks: tuple[Block, ...]
    answers: Tensor


@dataclass
class Pieces:
    """What `Segments` is made of, piece by piece.

    Attributes:
        width: H, the hidden size, which prices padding.
        pieces: Pairs of fed tokens: those before, and those that ask.
    """

    width: int
    pieces: list[Piece] = field(default_factory=list)

    def add(self, before: Sequence[int], asking: Sequence[int]) -> None:
        """Let tokens see those before them and, causally, themselves.

        Args:
            before: The prompt, or nothing.
            asking: The tokens whose results are wanted.
        """
        self.pieces.append((before, asking))

    def splits(self, before: int, asking: int) -> bool:
        """Say whether the answers to a prompt should attend to it apart from each other.

        The prompt's own attention is then computed once, but the call needs a mask; plain causal
        attention over whole rows needs none and is no slower for answers longer than their prompt.

        Args:
            before: Tokens of the prompt.
            asking: Tokens of the longest answer.

        Returns:
            True if so.
        """
        return before > asking or asking * (before + asking) <= _MASK_LIMIT

    def build(self, fed: int, device: torch.device) -> Any:
        """Choose the calls: segments share one where padding costs less than another call.

        Args:
            fed: l, the number of fed tokens.
            device: Where the tensors go.

        Returns:
            The gathers, `Segments`.
        """
        price = max(1, _CALL_PAIRS.get(device.type, 2**30) // self.width)
        queries: list[int] = []
        keys: list[int] = []
        answers = [0] * fed
        blocks = []
        for group in _grouped(self.pieces, price):
            asking = max(len(own) for _, own in group)
            before = max(len(prompt) for prompt, _ in group)
            for prompt, own in group:
                slot = len(queries)
                for token in own:
                    answers[token] = slot
                    slot += 1
                padded = [*own, *[own[0]] * (asking - len(own))]
                queries += padded
                keys += [*prompt, *[*prompt[:1]] * (before - len(prompt)), *padded]
            lengths = [len(prompt) for prompt, _ in group]
            seen = _seen(lengths, before, asking).to(device) if before else None
            blocks.append(Block(len(group), asking, before + asking, seen))
        tables = (torch.tensor(table, device=device) for table in (queries, keys, answers))
        one, two, three = tables
        return Segments(one, two, tuple(blocks), three)


def _grouped(pieces: Sequence[Piece], price: int) -> list[list[Piece]]:
    groups: list[list[Piece]] = []
    before = waste = 0
    for piece in sorted(pieces, key=lambda p: (not p[0], -len(p[1]), -len(p[0]))):
        prompt, own = len(piece[0]), len(piece[1])
        if groups and bool(groups[-1][0][0]) == bool(piece[0]):
            asking, count = len(groups[-1][0][1]), len(groups[-1])
            wider = max(before, prompt)
            more = asking * ((count + 1) * (wider + asking) - count * (before + asking))
            waste += more - own * (prompt + own)
            if waste <= price * count:
                groups[-1].append(piece)
                before = wider
                continue
        groups.append([piece])
        before, waste = prompt, 0
    return groups


def _seen(lengths: list[int], before: int, asking: int) -> Tensor:
    own = torch.ones(asking, asking, dtype=torch.bool).tril()
    lengths = lengths[:1] if len(set(lengths)) == 1 else lengths
    prompt = torch.arange(before) < torch.tensor(lengths)[:, None]
    count = len(lengths)
    parts = [prompt[:, None, :].expand(-1, asking, -1), own.expand(count, -1, -1)]
    return torch.cat(parts, -1)[:, None]


def check_plain(kwargs: Mapping[str, Any]) -> None:
    """Refuse attention whose scores a family changes in a way that is not known here.

    Args:
        kwargs: What the family passes.

    Raises:
        ValueError: If it does.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"its attention has {name}")


def register() -> None:
    """Make `attend` known to transformers under `NAME`, with the masks of its sdpa."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Segments | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' sdpa does, or by segments where the caller of the decoder says so.

    Args:
        module: The attention layer.
        query: (1, heads, l, d).
        key: (1, key-value heads, l, d).
        value: (1, key-value heads, l, d).
        attention_mask: Ignored where there are segments.
        scaling: Factor of the scores, 1 / sqrt(d) by default.
        segments: Who sees whom.
        **kwargs: What else the family passes.

    Returns:
        (1, l, heads, d) and no weights.

    Raises:
        ValueError: If the family changes its scores in a way that is not known here.
    """
    if segments is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    check_plain(kwargs)
    queries, keys, values = (
        states[0].transpose(0, 1).flatten(1).index_select(0, slots)
        for states, slots in (
            (query, segments.queries),
            (key, segments.keys),
            (value, segments.keys),
        )
    )
    heads, groups = query.shape[1], key.shape[1]
    asked = torch.split(queries, [block.count * block.queries for block in segments.blocks])
    sizes = [block.count * block.keys for block in segments.blocks]
    given, shown = torch.split(keys, sizes), torch.split(values, sizes)
    found = [
        _call(block, (a, b, c), (heads, groups), scaling)
        for block, a, b, c in zip(segments.blocks, asked, given, shown, strict=True)
    ]
    out = torch.cat(found).index_select(0, segments.answers)
    return out.view(1, len(segments.answers), heads, -1), None


def _call(
    block: Block,
    states: tuple[Tensor, Tensor, Tensor],
    heads: tuple[int, int],
    scaling: float | None,
) -> Tensor:
    (query, key, value), (many, few) = states, heads
    key = key.view(block.count, block.keys, few, -1).transpose(1, 2)
    value = value.view(block.count, block.keys, few, -1).transpose(1, 2)
    query = query.view(block.count, block.queries, few, many // few, -1)
    if block.seen is None:
        query = query.flatten(2, 3).transpose(1, 2)
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=many != few
        )
        return out.transpose(1, 2).flatten(0, 1).flatten(1)
    # Heads that share a key stand below each other as queries, so that no key is copied.
    query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen = block.seen.repeat(1, 1, many // few, 1)
    out = scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)
    out = out.view(block.count, few, many // few, block.queries, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(block.count * block.queries, -1)
