"""What a report shows of mixtures of experts, and that it shows nothing of dense models."""

import json

import pytest
from synthetic import write_run

from rlzoo.compare.reporting.collect import collect
from rlzoo.compare.reporting.expert_figures import loads
from rlzoo.compare.reporting.report import write_report


def with_experts(root, variant, seed, even):
    write_run(root, variant, seed, reached=10)
    folder = root / "runs" / f"{variant}-seed{seed}"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"moe/volatility": 0.01 * row["iteration"], "moe/load_max": 2.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = [[1.0, 1.0, 1.0, 1.0], [even, 2 - even, 0.0, 2.0]]
    entry = {"layers": [1, 3], "first": {"iteration": 1, "load": load}}
    entry["last"] = {"iteration": 10, "load": load}
    (folder / "experts.json").write_text(json.dumps(entry))


@pytest.fixture
def mixed(tmp_path):
    """A mixture with two seeds, and a dense variant."""
    for seed, even in enumerate((1.0, 0.5)):
        with_experts(tmp_path, "GRPO", seed, even)
        write_run(tmp_path, "PPO", seed, reached=10)
    return tmp_path


def test_loads_are_averaged_over_seeds(mixed):
    comparison = collect(mixed)
    layers, table, iteration = loads(comparison.of("GRPO"), "last")
    assert (layers, iteration) == ([1, 3], 10)
    assert table == [[1.0] * 4, [0.75, 1.25, 0.0, 2.0]]
    assert loads(comparison.of("PPO"), "last") is None


def test_a_mixture_gets_its_maps_and_curves_and_a_dense_variant_none(mixed):
    page = write_report(mixed).read_text()
    assert {path.name for path in mixed.glob("experts_*.png")} == {
        "experts_first_0.png",
        "experts_last_0.png",
    }
    assert (mixed / "volatility.png").stat().st_size > 5000
    assert "Mixture of experts" in page
    assert "Load by expert, GRPO" in page
    assert "Load by expert, PPO" not in page
