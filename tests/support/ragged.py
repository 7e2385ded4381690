"""Ragged rows and their masks."""

import torch


def rows(*values, fill=0.0):
    width = max(len(row) for row in values)
    return torch.tensor([list(row) + [fill] * (width - len(row)) for row in values])


def ones_like_lengths(*lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
