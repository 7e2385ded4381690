"""States of random generators."""

import random

import numpy as np
import torch

from rlzoo.training.random_states import collect_rng, restore_rng


def test_random_states_come_back_through_a_checkpoint(tmp_path):
    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item(), random.gauss(0, 1)

    random.gauss(0, 1)  # leaves half a pair behind
    torch.save(collect_rng(), tmp_path / "rng")
    expected = [draw() for _ in range(3)]
    restore_rng(torch.load(tmp_path / "rng", weights_only=True))
    assert [draw() for _ in range(3)] == expected
