"""The layout of fed tokens: which token of which row stands where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlzoo.models.feeding.dense_attention import Pieces
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
        segments: Who sees whom where the sequences stand in one line, in the form that the
            decoder's attention takes, or None for plain rows.
        answers: (b * l,) long in one line, the row whose answer a fed token is part of; -1 in a
            prompt.
    """

    input_ids: Tensor
    position_ids: Tensor
    rows: Tensor
    columns: Tensor
    real: Tensor
    source: Tensor
    kept: Tensor
    segments: Any = None
    answers: Tensor | None = None

    def collect(self, values: Tensor) -> Tensor:
        """Return what belongs to each fed token.

        Args:
            values: (n, S, ...) by row and column.

        Returns:
            (b * l, ...), junk where not `real`.
        """
        return values[self.rows, self.columns]

    def scatter(self, flat: Tensor) -> Tensor:
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
        sequences: n rows.

    Returns:
        Row, response index and column of each token, all (M,), in row-major order.
    """
    rows, slots = sequences.mask.nonzero(as_tuple=True)
    return rows, slots, sequences.prompt_lengths[rows] + slots


def answer_lengths(sequences: Sequences) -> Tensor:
    """Count the response tokens up to the last one whose log-prob is wanted.

    Args:
        sequences: n rows.

    Returns:
        (n,) long.
    """
    width = sequences.mask.shape[1]
    ends = torch.arange(1, width + 1, device=sequences.mask.device) * sequences.mask
    return ends.amax(-1)


def padded(sequences: Sequences) -> Layout:
    """Feed right-padded rows; causal attention needs no mask, for no real token can see a pad.

    Args:
        sequences: n rows.

    Returns:
        A layout of n rows and S - 1 columns.
    """
    inputs, device = sequences.input_ids[:, :-1], sequences.input_ids.device
    count, width = inputs.shape
    positions = torch.arange(width, device=device).expand(count, -1)
    rows = torch.arange(count, device=device)[:, None].expand(-1, width)
    real = positions < (sequences.prompt_lengths + answer_lengths(sequences))[:, None] - 1
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


def shared(sequences: Sequences, pieces: Pieces) -> Layout:
    """Feed every token once, in one line: each distinct prompt, then the answers to it.

    Args:
        sequences: n rows.
        pieces: An empty one, of the kind that the decoder's attention takes.

    Returns:
        A layout of one row.
    """
    device = sequences.input_ids.device
    prompts = sequences.prompt_lengths.tolist()
    answers = [max(0, length - 1) for length in answer_lengths(sequences).tolist()]
    owners: list[int] = []
    parts: list[int] = []
    columns: list[int] = []
    starts: dict[int, tuple[int, int]] = {}
    fed = 0
    for members in _by_prompt(sequences, prompts):
        longest = max(members, key=lambda row: answers[row])
        prompt = range(fed, fed + prompts[longest])
        fed = prompt.stop
        owners += [longest] * len(prompt)
        parts += [-1] * len(prompt)
        columns += range(len(prompt))
        split = len(members) > 1 and pieces.splits(len(prompt), answers[longest])
        if split or not answers[longest]:
            pieces.add([], prompt)
        for row in members:
            own = range(fed, fed + answers[row])
            starts[row] = prompt.start, own.start
            fed = own.stop
            owners += [row] * len(own)
            parts += [row] * len(own)
            columns += range(len(prompt), len(prompt) + len(own))
            if own and split:
                pieces.add(prompt, own)
            elif own:
                pieces.add([], [*prompt, *own])
    begin, after = torch.tensor([starts[row] for row in range(len(prompts))], device=device).T
    lengths = torch.tensor([prompts, answers], device=device)[..., None]
    places = torch.arange(sequences.input_ids.shape[1], device=device).expand(len(prompts), -1)
    of_prompt = begin[:, None] + places
    source = torch.where(places < lengths[0], of_prompt, after[:, None] + places - lengths[0])
    # An empty answer's prompt predicts nothing at its end.
    used = lengths[0] + torch.where(answer_lengths(sequences)[:, None] > 0, lengths[1], -1)
    source = torch.where(places < used, source, -1)
    rows, at = torch.tensor([owners, columns], device=device)
    answer, _, column = response_slots(sequences)
    real = torch.zeros(fed, dtype=torch.bool, device=device)
    real[source[source >= 0]] = True
    return Layout(
        input_ids=sequences.input_ids[rows, at][None],
        position_ids=at[None],
        rows=rows,
        columns=at,
        real=real,
        source=source,
        kept=source[answer, column - 1],
        segments=pieces.build(fed, device),
        answers=torch.tensor(parts, device=device),
    )


def _by_prompt(sequences: Sequences, lengths: list[int]) -> list[list[int]]:
    """Return rows by prompt; rows that must use different experts for it have different ones."""
    ids = sequences.input_ids.cpu()
    experts = None if sequences.experts is None else sequences.experts.cpu()
    groups: dict[bytes, list[int]] = {}
    for row, length in enumerate(lengths):
        key = ids[row, :length].numpy().tobytes()
        if experts is not None:
            key += experts[row, :length].numpy().tobytes()
        groups.setdefault(key, []).append(row)
    return list(groups.values())
