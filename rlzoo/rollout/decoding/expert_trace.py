"""The experts that a mixture of experts used while it was sampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class ExpertTrace:
    """The experts of every token that the model has been fed, by answer and column.

    Args:
        noted: Returns the (tokens, L, k) experts of the last pass, or None.
        lengths: (N,) long, prompt tokens of each answer.
        room: T, most response tokens.
    """

    def __init__(self, noted: Callable[[], Tensor | None], lengths: Tensor, room: int) -> None:
        self.noted, self.lengths = noted, lengths
        self.width = int(lengths.max()) + room if len(lengths) else 0
        self.experts: Tensor | None = None

    def prompts(self, rows: Tensor, owners: Tensor) -> None:
        """Take what prompts used that have just been read, left-padded.

        Args:
            rows: (new,) the answers that begin.
            owners: (new,) the prompt of each.
        """
        seen = self.noted()
        if seen is None:
            return
        seen = seen.view(int(owners.max()) + 1, -1, *seen.shape[1:])
        if self.experts is None:
            shape = (len(self.lengths), self.width, *seen.shape[2:])
            self.experts = seen.new_zeros(shape)
        width = seen.shape[1]
        columns = torch.arange(width, device=rows.device) + width - self.lengths[rows, None]
        # Beyond a prompt's end stands its last token again, until the answer writes there.
        columns.clamp_max_(width - 1)
        self.experts[rows, :width] = seen[owners[:, None], columns]

    def answers(self, rows: Tensor, counts: Tensor) -> None:
        """Take what the last token of each answer used.

        Args:
            rows: (n,) the answers, in the order of the step.
            counts: (n,) tokens that they have.
        """
        seen = self.noted()
        if seen is not None and self.experts is not None:
            self.experts[rows, self.lengths[rows] + counts - 1] = seen
