"""How sequences are fed to a decoder: which token of which row stands where."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlzoo.types import Sequences


@dataclass(frozen=True)
class Layout:
    """The tokens of n sequences in the order in which a decoder is fed them.

    A fed token is an entry of ``input_ids``, counted flat, row by row. The last token of a
    sequence predicts nothing, so that nothing need be fed there.

    Attributes:
        input_ids: (b, l) long.
        position_ids: (b, l) long.
        rows: (b * l,) long, the sequence that a fed token belongs to; one of them where several
            share it.
        columns: (b * l,) long, its place in that sequence.
        real: (b * l,) bool, False where what is fed is padding, or predicts nothing.
        source: (n, S) long, the flat index of what was fed for a row and column; -1 for nothing.
        kept: (M,) long, the flat index of the states that predict the response tokens, in
            row-major order of the mask.
    """

    input_ids: Tensor
    position_ids: Tensor
    rows: Tensor
    columns: Tensor
    real: Tensor
    source: Tensor
    kept: Tensor

    def collect(self, values: Tensor) -> Tensor:
        """Return what belongs to each fed token.

        Args:
            values: (n, S, ...) by row and column.

        Returns:
            (b * l, ...), junk where not `real`.
        """
        return values[self.rows, self.columns]

    def spread(self, flat: Tensor) -> Tensor:
        """Return by row and column what was found for each fed token.

        Args:
            flat: (b * l, ...).

        Returns:
            (n, S, ...), 0 where nothing was fed.
        """
        values = flat[self.source.clamp_min(0)]
        fed = (self.source >= 0).reshape(self.source.shape + (1,) * (values.dim() - 2))
        return torch.where(fed, values, values.new_zeros(()))


def response_slots(sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """Find the masked-in response tokens and the columns they stand in.

    Args:
        sequences: n right-padded rows.

    Returns:
        Row, response index and column of each token, all (M,), in row-major order.
    """
    rows, slots = sequences.mask.nonzero(as_tuple=True)
    return rows, slots, sequences.prompt_lengths[rows] + slots


def padded(sequences: Sequences) -> Layout:
    """Feed right-padded rows; causal attention needs no mask, for no real token can see a pad.

    Args:
        sequences: n right-padded rows.

    Returns:
        A layout of n rows and S - 1 columns.
    """
    inputs, device = sequences.input_ids[:, :-1], sequences.input_ids.device
    count, width = inputs.shape
    positions = torch.arange(width, device=device).expand(count, -1)
    rows = torch.arange(count, device=device)[:, None].expand(-1, width)
    ends = torch.arange(1, sequences.mask.shape[1] + 1, device=device) * sequences.mask
    lengths = sequences.prompt_lengths + ends.amax(-1)
    real = positions < lengths[:, None] - 1
    source = torch.where(real, rows * width + positions, -1)
    nothing = source.new_full((count, 1), -1)
    answer, _, column = response_slots(sequences)
    return Layout(
        input_ids=inputs,
        position_ids=positions,
        rows=rows.reshape(-1),
        columns=positions.reshape(-1),
        real=real.reshape(-1),
        source=torch.cat([source, nothing], -1),
        kept=answer * width + column - 1,
    )
