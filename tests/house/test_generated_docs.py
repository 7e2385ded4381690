"""The generated pages are what the code would write now."""

import json
import math
import re
import subprocess
import sys

import pytest
from repository import ROOT

from benchmarks.reproduction.page import render
from benchmarks.reproduction.verdicts import claims
from rlzoo.algorithms import CISPO, GRPO, GSPO, REINFORCE, discover
from rlzoo.objective.gradient_weight import clip_effect, gradient_weight, ratio_unit


def test_pages_are_fresh():
    run = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


def test_the_page_on_the_paper_is_what_its_figures_say():
    found = json.loads((ROOT / "docs" / "reproduction.json").read_text())
    assert set(found) == {"claims", "replay", "stress", "long"}
    page = render(found)
    assert (ROOT / "docs" / "reproduction.md").read_text() == page
    for picture in re.findall(r"\]\((images/[^)]+)\)", page):
        assert (ROOT / "docs" / picture).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_claim_is_judged_by_its_figures():
    """Swapping what GRPO and GSPO clip turns the verdict."""
    found = json.loads((ROOT / "docs" / "reproduction.json").read_text())
    clips = [row for row in claims(found) if row.claim.startswith("GSPO clips")]
    assert {row.verdict for row in clips} == {"yes"}
    variants = found["long"]["variants"]
    variants["GRPO"]["means"], variants["GSPO"]["means"] = (
        variants["GSPO"]["means"],
        variants["GRPO"]["means"],
    )
    clips = [row for row in claims(found) if row.claim.startswith("GSPO clips")]
    assert [row.verdict for row in clips] == ["yes", "no"]


def test_only_runs_without_replay_speak_of_collapse_without_replay():
    found = json.loads((ROOT / "docs" / "reproduction.json").read_text())
    verdicts = []
    for replay in ("old-policy", "off"):
        for label, variant in found["replay"]["variants"].items():
            fell = label.startswith("GRPO") and replay in variant["axes"].values()
            variant["drops"] = [0.5 if fell else 0.0]
        verdicts += [row.verdict for row in claims(found) if row.claim.startswith("GRPO collapses")]
    assert verdicts == ["no collapse", "yes"]


@pytest.mark.parametrize("name", discover())
def test_every_objective_has_its_picture(name):
    picture = ROOT / "docs" / "images" / "algorithms" / f"{name}.png"
    assert picture.exists(), "run `python docs/generate.py`"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_gradient_weight_is_the_ratio_until_the_clip_takes_it():
    assert math.isclose(gradient_weight(GRPO(), 1.1, 1.0), 1.1)
    assert gradient_weight(GRPO(), 1.3, 1.0) == 0
    assert math.isclose(gradient_weight(GRPO(), 1.3, -1.0), 1.3)
    assert math.isclose(gradient_weight(CISPO(2.0), 3.0, 1.0), 2.0)
    assert math.isclose(gradient_weight(REINFORCE(), 3.0, 1.0), 1.0)


def test_units_and_effects_are_found_by_trying():
    assert [ratio_unit(a) for a in (GRPO(), GSPO())] == ["token", "answer"]
    found = [clip_effect(a) for a in (GRPO(), CISPO(), REINFORCE())]
    assert found == ["gradient", "weight", "nothing"]
