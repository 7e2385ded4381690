"""Sequences in one line through FlashAttention, which takes calls of any lengths without padding.

Chosen by the policy's ``attention: flash_attention_2``; it runs on CUDA in half precision. Padded
rows and prompts before sampling go through transformers' own call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.models.feeding.dense_attention import Pieces, check_plain

NAME = "flash_attention_2"
_CAUSAL = (-1, 0)  # varlen_attn's window: all that stands before, nothing that follows


@dataclass(frozen=True)
class Ragged:
    """Which fed token sees which, as one call of many lengths.

    Query i of a piece with q queries and k keys sees keys 0 to k - q + i: its queries are the last
    of its keys.

    Attributes:
        queries: (queries,) long, the fed token behind each query.
        keys: (keys,) long, likewise for keys and values.
        query_ends: (n + 1,) int32, where each piece's queries begin, and their number.
        key_ends: (n + 1,) int32, likewise.
        longest: Most queries and most keys of a piece.
        answers: (l,) long, the query whose result belongs to each fed token.
    """

    queries: Tensor
    keys: Tensor
    query_ends: Tensor
    key_ends: Tensor
    longest: tuple[int, int]
    answers: Tensor


class RaggedPieces(Pieces):
    """Pieces of one call, each as long as it is."""

    def splits(self, before: int, asking: int) -> bool:
        """Say that a prompt always attends to itself but once: no mask is needed for that."""
        return True

    def build(self, fed: int, device: torch.device) -> Ragged:
        """Stand all pieces behind each other.

        Args:
            fed: l, the number of fed tokens.
            device: Where the tensors go.

        Returns:
            The gathers.
        """
        queries = [token for _, own in self.pieces for token in own]
        keys = [token for piece in self.pieces for part in piece for token in part]
        asking = [len(own) for _, own in self.pieces]
        seen = [len(before) + len(own) for before, own in self.pieces]
        answers = [0] * fed
        for slot, token in enumerate(queries):
            answers[token] = slot

        def table(values: Iterable[int], dtype: torch.dtype = torch.long) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return Ragged(
            queries=table(queries),
            keys=table(keys),
            query_ends=table([0, *accumulate(asking)], torch.int32),
            key_ends=table([0, *accumulate(seen)], torch.int32),
            longest=(max(asking), max(seen)),
            answers=table(answers),
        )


def register() -> None:
    """Let transformers' flash_attention_2 take `Ragged` segments; without them it stays itself."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Ragged | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers does, or by segments; see `dense_attention.attend`."""
    from transformers.integrations import flash_attention

    if segments is None:
        return flash_attention.flash_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    check_plain(kwargs)
    from torch.nn.attention.varlen import varlen_attn

    half = flash_attention.get_target_dtype(query, module) or query.dtype
    queries, keys, values = (
        states[0].transpose(0, 1).index_select(0, slots).to(half)
        for states, slots in (
            (query, segments.queries),
            (key, segments.keys),
            (value, segments.keys),
        )
    )
    call: Any = varlen_attn
    out = call(
        queries,
        keys,
        values,
        segments.query_ends,
        segments.key_ends,
        *segments.longest,
        scale=scaling,
        window_size=_CAUSAL,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.index_select(0, segments.answers)[None], None
