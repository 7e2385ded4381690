"""One thread per process: sums come out the same everywhere, and test runs do not fight."""

import pytest
import torch
import torch.distributed as dist

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_process_group_is_left():
    """A run in this process may start one; the next test would take itself for a rank."""
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
