"""Fixtures: tiny models and ragged rows."""

import pytest
import torch
from tiny_models import DENSE, Counter, build

from rlzoo.models import DensePolicy
from rlzoo.types import Sequences


@pytest.fixture
def tiny():
    return build


@pytest.fixture
def sequences():
    """Three ragged rows; the middle one has a hole in its mask."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(2, 20, (3, 12), generator=generator)
    lengths = torch.tensor([4, 1, 7])
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    for row, (prompt, answer) in enumerate(zip(lengths, (3, 5, 2), strict=True)):
        input_ids[row, prompt + answer :] = 0
    return Sequences(input_ids, lengths, mask)


@pytest.fixture
def counter():
    """A policy around `Counter`, without weights of its own."""

    def make(vocabulary, logit=100.0, dtype=torch.float32):
        policy = DensePolicy(config=DENSE["qwen3"])
        policy.model = Counter(vocabulary, logit, dtype)
        return policy

    return make
