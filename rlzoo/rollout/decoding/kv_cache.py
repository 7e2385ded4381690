"""Keys and values of the answers being decoded, in memory that is taken once.

All answers write the same column at a step: answer i's tokens stand in columns ``start[i]`` to
``end``, its last token always in the last column. An answer that leaves gives its row to the last
one, so that those being decoded are a prefix of the rows and every read is a view.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Layer = tuple[Tensor, Tensor]
_MORE = 256  # columns taken at a time: memory follows the answers, not the longest one allowed


class Slots:
    """The key-value cache of up to `rows` answers.

    Args:
        rows: Most answers at a time.
        room: Most tokens that an answer grows by.
        device: Where it lives.

    Attributes:
        size: Answers that are being decoded.
        start: (rows,) first column of each answer.
        low: First column that any of them uses.
        end: First column that none of them uses.
    """

    def __init__(self, rows: int, room: int, device: torch.device) -> None:
        self.rows, self.room = rows, room
        self.start = torch.zeros(rows, dtype=torch.long, device=device)
        self.layers: list[list[Tensor]] = []
        self.size = self.low = self.end = self.capacity = 0

    def join(self, layers: Sequence[Layer], lengths: Tensor, owners: Tensor) -> None:
        """Add answers to prompts that have been read.

        Args:
            layers: Keys and values (P, heads, width, dim) of each layer, left-padded.
            lengths: (P,) tokens per prompt.
            owners: (new,) the prompt of each new answer.
        """
        width = layers[0][0].shape[-2]
        if not self.layers:
            self.capacity = width + min(self.room, _MORE)
            self.layers = [[self._empty(part) for part in layer] for layer in layers]
        if self.size == 0:
            self.low = self.end = 0
        if self.end < width or self.end == self.capacity:
            self._move(max(self.end - self.low, width))
        new = slice(self.size, self.size + len(owners))
        for own, layer in zip(self.layers, layers, strict=True):
            for mine, given in zip(own, layer, strict=True):
                mine[new, :, self.end - width : self.end] = given.index_select(0, owners)
        self.start[new] = self.end - lengths.index_select(0, owners)
        self.size = new.stop
        self._find_low()

    def grow(self) -> None:
        """Make sure that there is a column for the next token."""
        if self.end == self.capacity:
            self._move(self.end - self.low)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> Layer:
        """Store the next token's keys and values (size, heads, 1, dim) and return views of all.

        The column counts once `advance` is called.
        """
        own = self.layers[layer]
        own[0][: self.size, :, self.end] = keys[:, :, 0]
        own[1][: self.size, :, self.end] = values[:, :, 0]
        used = slice(self.low, self.end + 1)
        return own[0][: self.size, :, used], own[1][: self.size, :, used]

    def advance(self) -> None:
        """Count the column that `write` filled in every layer."""
        self.end += 1

    def positions(self) -> Tensor:
        """Return the (size,) position of each answer's next token."""
        return self.end - self.start[: self.size]

    def visible(self) -> Tensor | None:
        """Return which columns the next token may see, itself included, None where all may.

        (size, columns) bool.
        """
        if self._aligned:
            return None
        columns = torch.arange(self.low, self.end + 1, device=self.start.device)
        return columns >= self.start[: self.size, None]

    def keep(self, alive: Tensor) -> Tensor:
        """Let answers go; the last rows move into the places that become free.

        Args:
            alive: (size,) bool.

        Returns:
            (kept,) the former row of each row that is left.
        """
        order = alive.nonzero().squeeze(-1)
        kept = len(order)
        holes = (~alive[:kept]).nonzero().squeeze(-1)
        movers = order[kept - len(holes) :]
        if len(holes):
            for layer in self.layers:
                for part in layer:
                    used = part[:, :, self.low : self.end]
                    used[holes] = used[movers]
        order = torch.arange(kept, device=alive.device).index_copy(0, holes, movers)
        self.start[:kept] = self.start[order]
        self.size = kept
        self._find_low()
        return order

    def _find_low(self) -> None:
        if self.size:
            first, last = self.start[: self.size].aminmax()
            self.low, self._aligned = int(first), bool(first == last)

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros: what is masked still meets a weight of 0, which junk could turn into NaN.
        return like.new_zeros(self.rows, like.shape[1], self.capacity, like.shape[3])

    def _move(self, end: int) -> None:
        """Shift all columns so that they stop at `end`, with room for more behind it."""
        wanted = end + min(self.room, max(_MORE, end // 2))
        old = slice(self.low, self.end)
        self.start += end - self.end
        self.low, self.end = self.low + end - self.end, end
        larger = wanted > self.capacity
        self.capacity = max(wanted, self.capacity)
        for layer in self.layers:
            for i, part in enumerate(layer):
                used = part[: self.size, :, old]
                new = self._empty(part) if larger else part
                new[: self.size, :, self.low : self.end] = used if larger else used.clone()
                layer[i] = new
