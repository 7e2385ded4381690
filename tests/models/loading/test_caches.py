"""What a process keeps of the shapes it has met."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import build

from rlzoo.models.loading.caches import NAMES

MEASURE = """
import sys, torch
from torch.nn.functional import linear
if sys.argv[1] == "bounded":
    from rlzoo.models.caches import bound_caches
    bound_caches()
torch.set_num_threads(1)
weight = torch.randn(512, 512).bfloat16()

def products(first, last):
    for rows in range(first, last):
        linear(torch.randn(rows, 512).bfloat16(), weight)
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

few, many = products(1, 100), products(100, 300)
print(many - few)
"""


def growth(kind, **environment):
    plain = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-c", MEASURE, kind]
    run = subprocess.run(
        command, env=plain | environment, capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells its memory so")
def test_memory_does_not_grow_with_the_number_of_shapes():
    """The kernels of 200 products of other shapes stay, unless that is bounded."""
    free = growth("free")
    if free < 20_000:
        pytest.skip("this CPU compiles no products of its own for bfloat16")
    assert growth("bounded") < free / 4
    assert growth("bounded", **dict.fromkeys(NAMES, "1024")) > free / 2  # the user's word counts


def test_loading_weights_bounds_them(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    build("llama").load()
    assert {os.environ[name] for name in NAMES} == {"64"}
