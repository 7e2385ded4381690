"""The step benchmark runs, forces the lengths it promises, and computes what it prints."""

import argparse
import json

import pytest

from benchmarks import render
from benchmarks.step import __main__ as step
from benchmarks.step import ours
from benchmarks.step.workload import Work, prepare


def test_the_step_of_a_tiny_model_is_measured(tmp_path):
    prepare("dense", 128, 12, tmp_path, rows=6)
    work = Work(str(tmp_path), prompts=2, group=2, new_tokens=16, median=10, cycles=2)
    result = ours.run(work)
    found = step.summary([result])
    assert found["cycles"] == 2
    assert result["tokens"] == [int(work.lengths(1).sum())] * 2
    assert work.lengths(0).max() <= 8 < work.lengths(1).max() <= 16
    parts = sum(found[f"{part}_cpu"]["min"] for part in ("generation", "scoring", "training"))
    assert 0 < parts < found["step_cpu"]["median"] * 1.5
    assert found["training_cpu"]["min"] > 0
    assert found["peak_mb"] > 100


def one(step_cpu, peak):
    times = {"min": step_cpu, "median": 2 * step_cpu}
    return {
        **{f"{part}_{kind}": times for part in step.PARTS for kind in ("seconds", "cpu")},
        "cycles": 3,
        "tokens": 100,
        "generation_tokens_per_cpu_s": 1.0,
        "step_tokens_per_cpu_s": 1.0,
        "peak_mb": peak,
    }


def test_ratios_are_the_peers_figures_over_ours():
    ratios = step.ratios(one(2.0, 700), one(6.0, 1000))
    assert ratios["step_cpu"] == ratios["generation_cpu_min"] == pytest.approx(3)
    assert ratios["memory"] == pytest.approx(1 / 0.7)


def test_the_page_gets_its_tables_from_the_files(tmp_path):
    text = "".join(
        f"<!-- {name} -->\nold\n<!-- end -->\n" for name in ("step", "memory", "scaling")
    )
    ours_, peer = one(2.0, 700), one(6.0, 1000)
    work = {"algorithm": "GSPO", "minibatches": 4, "precision": "bf16", "checkpointing": True}
    whole = {"model": "dense", "vocabulary": 151936, "work": work, "rlzoo": ours_, "peer": peer}
    whole |= {"peer_setting": "best", "ratio": step.ratios(ours_, peer)}
    (tmp_path / "step_x.json").write_text(json.dumps(whole))
    page = render.page(text, tmp_path)
    assert "old" not in page
    assert "V = 151,936 | GSPO | 4 | bf16, recomputed / best | 4.00 / 12.00" in page
    assert "**3.00**" in page
    assert "700 / 1000 | 0.70" in page


def test_the_documented_tables_are_those_of_the_files():
    text = render.PAGE.read_text()
    assert render.page(text, render.DOCS / "performance") == text


def test_the_defaults_are_the_documented_workload():
    given = step.parser().parse_args([])
    assert isinstance(given, argparse.Namespace)
    assert (given.prompts, given.group, given.prompt_tokens, given.new_tokens) == (4, 8, 64, 128)
    assert (given.median, given.minibatches, given.threads) == (56, 1, 1)
