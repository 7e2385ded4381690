"""What bounds decoding and training, from published figures."""

from dataclasses import replace

import pytest
from planned_jobs import job

from rlzoo.models import MoEPolicy
from rlzoo.plan.anatomy import measure
from rlzoo.plan.hardware import PRESETS
from rlzoo.plan.sharding import Sharding
from rlzoo.plan.speed import bounds


def test_decoding_is_bound_by_reading_weights_and_cache():
    """8.19 B parameters less the look-up, 2 B each, and 32 x 1000 tokens x 147,456 B of cache."""
    [decode, train] = bounds(job(), PRESETS["h100"])
    read = 2 * (8.1907e9 - 151936 * 4096) + 32 * 1000 * 147456
    assert decode.rate == pytest.approx(32 / (read / 3350e9), rel=1e-3)
    assert (decode.limit, train.limit) == ("memory", "compute")
    # 6 N + 2 N for checkpointing, and causal attention: 4 x 2 L s q.
    work = 8 * (8.1907e9 - 151936 * 4096) + 8 * 36 * 1500 * 4096
    assert train.rate == pytest.approx(989e12 / work, rel=1e-3)


def test_partitioned_weights_make_decoding_wait_for_the_network():
    by_layer = Sharding("fsdp2", 4, stage=3, gather_for_rollout=False)
    decode = bounds(job(sharding=by_layer, concurrent=8), PRESETS["h100"])[0]
    whole = replace(by_layer, gather_for_rollout=True)
    assert bounds(job(sharding=whole, concurrent=8), PRESETS["h100"])[0].limit == "memory"
    assert decode.limit == "network"
    assert decode.network == pytest.approx(2 * 8.1907e9 * 3 / 4 / 450e9, rel=1e-3)


def test_experts_within_a_machine_use_its_links():
    """x = 2 experts x h = 4096 x 2 B, there and back, to 7 of 8 devices, in 32 layers."""
    spread = Sharding("deepspeed", 16, 2, stage=2, ep_size=8)
    anatomy = measure(MoEPolicy(path="mistralai/Mixtral-8x7B-Instruct-v0.1"))
    [decode, _] = bounds(job(anatomy=anatomy, sharding=spread), PRESETS["h100"])
    sent = 32 * 32 * 2 * 2 * 4096 * 2 * 7 / 8
    assert decode.network == pytest.approx(sent / 450e9)
    [decode, _] = bounds(job(anatomy=anatomy, sharding=replace(spread, nodes=4)), PRESETS["h100"])
    assert decode.network == pytest.approx(sent / 50e9)
