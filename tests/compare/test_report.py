"""The report: what it reads, what it counts, what it says, and what it must not say."""

import base64
import dataclasses
import json
import math
import re

import pytest
from synthetic import VARIANTS, line, write_all, write_run

from rlzoo.compare.reporting import charts, measures
from rlzoo.compare.reporting.collect import RecordedRun, collect, same_start
from rlzoo.compare.reporting.diagnostics import length_range, middles, spread_by_length
from rlzoo.compare.reporting.figures import signed
from rlzoo.compare.reporting.measures import Curve
from rlzoo.compare.reporting.page import Section, Table, page
from rlzoo.compare.reporting.report import first_rollouts, write_report
from rlzoo.compare.reporting.results import comparable, evaluate, summarize
from rlzoo.compare.reporting.sentences import caveats, corrections, headline, number, verdict
from rlzoo.errors import UserError

GSPO = "GSPO-clip_low0.003"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return collect(write_all(tmp_path_factory.mktemp("read")))


@pytest.fixture(scope="module")
def results(comparison):
    return evaluate(comparison)


def made(rows, seed=0, **more):
    return RecordedRun(
        slug=f"a-seed{seed}", variant="A", algorithm="A", seed=seed, rows=rows, **more
    )


def ended(root, accuracies):
    """Write runs of one evaluation before and one after: variant to accuracies, by seed."""
    for variant, values in accuracies.items():
        for seed, value in enumerate(values):
            folder = root / "runs" / f"{variant}-seed{seed}"
            folder.mkdir(parents=True)
            entry = {"variant": variant, "algorithm": variant, "seed": seed, "status": "done"}
            (folder / "run.json").write_text(json.dumps(entry))
            held_out = [{"iteration": i, "val/accuracy": v} for i, v in ((0, 0.3), (4, value))]
            summary = {"iterations": 4, "held_out": held_out}
            (folder / "summary.json").write_text(json.dumps(summary))
    return collect(root)


# What is read


def test_finished_runs_count_and_others_are_named_with_their_reason(comparison):
    problems = {run.slug: run.problem for run in comparison.runs if run.problem}
    assert problems == {
        "PPO-seed2": "failed (RuntimeError: <oom> & co)",
        "CISPO-seed1": "killed, after 17 iterations",
    }
    assert len(comparison.used) == 10
    assert comparison.variants == list(VARIANTS)
    assert [run.seed for run in comparison.of("CISPO")] == [0, 2]
    assert any("CISPO-seed1" in note and "unreadable" in note for note in comparison.notes)


def test_results_are_found_one_level_below_and_not_deeper(tmp_path):
    write_run(tmp_path, "GRPO", 0)
    write_run(tmp_path, "GRPO", 1)
    for seed, below in ((0, "version_0"), (1, "a/b")):
        run = tmp_path / "runs" / f"GRPO-seed{seed}"
        (run / below).mkdir(parents=True)
        for name in ("summary.json", "metrics.jsonl"):
            (run / name).rename(run / below / name)
    first, second = collect(tmp_path).runs
    assert first.iterations == 40
    assert first.problem == ""
    assert second.problem == "no summary.json"


def test_a_repeated_iteration_counts_once_and_what_is_not_finite_not_at_all():
    rows = [{"iteration": 1, "x": 1.0}, {"iteration": 2, "x": math.nan}, {"iteration": 1, "x": 3.0}]
    assert made(rows).series("x") == [(1, 3.0)]
    assert made(rows).series("y") == []


def test_planned_runs_without_a_folder_are_listed(tmp_path):
    entry = write_run(tmp_path, "GRPO", 0)
    other = {**entry, "slug": "PPO-seed0", "variant": "PPO", "status": "planned"}
    plan = {"runs": [other, {**other, "slug": "PPO-seed1", "status": "failed"}, entry]}
    (tmp_path / "compare.json").write_text(json.dumps(plan))
    found = collect(tmp_path)
    assert [(r.slug, r.problem) for r in found.runs] == [
        ("PPO-seed0", "never started"),
        ("PPO-seed1", "failed, but its folder is gone"),
        ("GRPO-seed0", ""),
    ]


def test_the_second_run_of_a_seed_is_left_out_and_said_so(tmp_path):
    write_run(tmp_path, "GRPO", 0)
    write_run(tmp_path, "PPO", 0)
    path = tmp_path / "runs" / "PPO-seed0" / "run.json"
    path.write_text(path.read_text().replace('"variant": "PPO"', '"variant": "GRPO"'))
    found = collect(tmp_path)
    assert [run.slug for run in found.runs] == ["GRPO-seed0"]
    assert found.notes == ["PPO-seed0 repeats seed 0 of GRPO: left out"]


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        collect(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no run has a run\.json"):
        collect(tmp_path)


# Figures of a run


def test_area_is_the_mean_height_of_the_line_through_evaluations():
    rows = [{"iteration": i, "val/accuracy": v} for i, v in ((0, 0.2), (10, 0.6), (40, 0.8))]
    assert measures.area(made(rows)) == pytest.approx((10 * 0.4 + 30 * 0.7) / 40)
    assert measures.area(made(rows)) != pytest.approx((0.2 + 0.6 + 0.8) / 3)
    assert measures.final_accuracy(made(rows)) == 0.8
    assert measures.area(made(rows[:1])) is None


def test_drop_is_from_the_best_so_far_and_not_from_the_start():
    assert measures.largest_drop([0.5, 0.9, 0.7, 0.8, 0.6]) == pytest.approx(0.3)
    assert measures.largest_drop([0.6, 0.8, 0.9]) == 0.0
    assert measures.largest_drop([]) is None


def test_smoothing_uses_whole_windows_and_stands_at_the_last_iteration():
    assert measures.smoothed([1.0, 2.0, 3.0, 6.0], 3) == pytest.approx([2.0, 11 / 3])
    series = [(i, float(i)) for i in range(1, 5)]
    assert measures.trailing(series, 3) == [(3, 2.0), (4, 3.0)]


def test_time_adds_up_to_the_iteration():
    rows = [line("GRPO", 0, i) for i in (1, 2)]
    split = measures.time_split(made(rows))
    assert sum(split.values()) == pytest.approx(sum(r["time/iteration_s"] for r in rows) / 2)
    assert split["rest"] == pytest.approx(0.01)
    assert measures.time_split(made([{"iteration": 1, "reward/mean": 0.1}])) == {}


def test_seeds_are_compared_at_the_same_tokens():
    def at(seed, pace):
        rows = [{"iteration": i, "tokens/total": pace * i, "y": 1.0 * i} for i in (1, 2, 3)]
        return made(rows, seed)

    runs = [at(0, 100), at(1, 200)]  # the second needs twice the tokens for the same y
    by_tokens = measures.curve(runs, "y", measures.by_tokens)
    assert by_tokens.x == [200, 300]  # of 100 to 300, and 200 to 600, what both have
    assert by_tokens.y == pytest.approx([(2.0 + 1.0) / 2, (3.0 + 1.5) / 2])
    assert (by_tokens.low, by_tokens.high) == ([1.0, 1.5], [2.0, 3.0])
    assert measures.curve(runs, "y").y == [1.0, 2.0, 3.0]
    assert measures.curve(runs, "z") == Curve()


def test_seconds_add_up_from_zero():
    run = made([{"iteration": i, "time/iteration_s": 2.0} for i in (1, 2)])
    assert measures.by_seconds(run) == {0: 0.0, 1: 2.0, 2: 4.0}


def test_a_confidence_band_needs_three_seeds():
    assert measures.confidence([0.1, 0.2]) is None
    low, high = measures.confidence([0.1, 0.2, 0.3])
    assert (low, high) == pytest.approx((0.2 - 0.24841, 0.2 + 0.24841), abs=1e-4)
    assert measures.extremes([0.1]) is None


def test_a_curve_upside_down_keeps_low_below_high():
    assert signed(Curve([1], [-2.0], [-3.0], [-1.0], 2), -1) == Curve([1], [2.0], [1.0], [3.0], 2)


def test_spread_by_length_reads_the_range_from_the_name():
    found = spread_by_length([made([line("GRPO", 0, 1)])], "sequence")
    assert list(found) == [(1, 7), (8, 31), (32, math.inf)]
    assert found[1, 7] / found[8, 31] == pytest.approx(math.sqrt(19.5 / 4))
    assert middles(found) == [(4.0, found[1, 7]), (19.5, found[8, 31]), (48.0, found[32, math.inf])]
    assert [length_range(bucket) for bucket in found] == ["1-7", "8-31", "32 up"]


# Verdicts


def test_pairs_get_the_verdict_that_was_built_in(results):
    verdicts = {(p.first, p.second): p.final.verdict for p in results.pairs}
    assert verdicts["GRPO", GSPO] == "higher"
    assert verdicts["GRPO", "CISPO"] == "none"
    assert verdicts["CISPO", "PPO"] == "impossible"  # one seed in common
    assert results.comparisons == 5


def test_the_summary_says_so_and_ranks_nobody_else(results, comparison):
    text = headline(results, comparison)
    assert text[0].startswith(f"GRPO and CISPO each end higher than {GSPO} by 0.050 to 0.051")
    assert text[1].startswith("GRPO and CISPO; GRPO and PPO; ")
    assert "no difference shown" in text[1]
    assert text[3].startswith("CISPO and PPO: no verdict, one common seed")
    assert "10 of 12 runs finished" in text[-1]
    assert "1 killed, 1 failed" in text[-1]
    assert sum("higher" in line for line in text) == 1


def test_a_long_list_of_pairs_is_counted(tmp_path):
    found = ended(tmp_path, {name: [0.5, 0.5 + i / 100] for i, name in enumerate("ABCDE")})
    text = " ".join(headline(evaluate(found), found))
    assert "10 pairs (see the table): no difference shown" in text


@pytest.mark.parametrize(("better", "worse"), [("A", "B"), ("B", "A")])
def test_the_better_variant_is_named_first_whatever_the_order(tmp_path, better, worse):
    found = ended(tmp_path, {worse: [0.50, 0.51, 0.52], better: [0.700, 0.712, 0.719]})
    said = [text for text in headline(evaluate(found), found) if "higher" in text]
    assert len(said) == 1
    assert said[0].startswith(f"{better} ends higher than {worse} by 0.200 in")


def test_one_seed_gives_no_verdict_however_large_the_difference(tmp_path):
    found = ended(tmp_path, {"A": [0.1], "B": [0.9]})
    results = evaluate(found)
    text = " ".join(headline(results, found))
    assert "no verdict" in text
    assert "higher" not in text
    assert results.variants[0].final.bootstrap is None
    assert results.variants[0].final.t is None


def test_intervals_stay_within_what_accuracy_can_be():
    assert summarize({0: 0.9, 1: 0.99}).t[1] == 1.0
    assert summarize({0: 0.9, 1: None}).per_seed == {0: 0.9}
    assert summarize({}).mean is None


def test_only_pairs_that_differ_in_one_thing_are_compared(results):
    def variant(algorithm, **axes):
        return dataclasses.replace(results.variants[0], algorithm=algorithm, axes=axes)

    assert comparable(variant("GRPO", lr=1), variant("GSPO", lr=1))
    assert comparable(variant("GRPO", lr=1), variant("GRPO", lr=2))
    assert not comparable(variant("GRPO", lr=1), variant("GSPO", lr=2))
    assert not comparable(variant("GRPO", lr=1, size=1), variant("GRPO", lr=2, size=2))


def test_caveats_follow_from_the_runs(results, comparison, tmp_path):
    text = " ".join(caveats(results, comparison))
    assert "were not tuned for any" in text
    assert "2 runs of CISPO (1), PPO (1)" in text
    assert "5 pairs are compared" in corrections(results)
    whole = ended(tmp_path, {"A": [0.5, 0.6], "B": [0.5, 0.7]})
    assert "Not in the figures" not in " ".join(caveats(evaluate(whole), whole))
    assert "One pair" in corrections(evaluate(whole))
    own = {"algorithms": [{"label": "B", "overrides": {"model.optimizer.lr": 1}}]}
    whole.plan.update(own)
    assert "but for those of B" in " ".join(caveats(evaluate(whole), whole))


def test_accuracies_that_leave_no_room_are_pointed_out(tmp_path):
    found = ended(tmp_path, {"A": [0.0, 0.0], "B": [0.0, 0.0]})
    results = evaluate(found)
    assert verdict(results.pairs[0]) == "no difference shown: the same accuracy on every seed"
    assert "leaves no room" in " ".join(headline(results, found))
    other = ended(tmp_path / "other", {"A": [0.0, 0.0], "B": [0.4, 0.5]})
    assert "leaves no room" not in " ".join(headline(evaluate(other), other))


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"identical": True}, True),
        ({"identical": False}, False),
        ({"identical": None}, None),
        ({"ok": False}, False),
        (None, None),
    ],
)
def test_a_different_start_is_a_warning(found, same):
    plan = {"first_rollouts": found} if found else {}
    assert same_start(plan) is same
    section = first_rollouts(plan)
    assert section.urgent == (same is False)
    assert ("did NOT" in section.text[0]) == (same is False)


def test_a_different_start_is_said_first_and_with_its_groups(tmp_path):
    found = ended(tmp_path, {"A": [0.5, 0.6], "B": [0.5, 0.7]})
    hashes = {"A-seed0": "aa", "B-seed0": "bb"}
    groups = [{"seed": 0, "axes": {}, "identical": False, "hashes": hashes}]
    found.plan["first_rollouts"] = {"identical": False, "groups": groups}
    assert "did NOT" in headline(evaluate(found), found)[0]
    assert "aa: A-seed0; bb: B-seed0" in first_rollouts(found.plan).table.rows[0]


# The files


def test_the_page_needs_nothing_but_itself(report):
    text = report.read_text()
    assert not re.search(r"<script|<link|https?://|@import|url\(", text)
    sources = re.findall(r'src="([^"]*)"', text)
    assert len(sources) >= 15
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_every_picture_stands_beside_the_page_and_in_it(report):
    text = report.read_text()
    files = {path.stem: path for path in report.parent.glob("*.png")}
    shown = dict(
        re.findall(r'<figure id="(\w+)"><img alt="[^"]+" src="data:image/png;base64,([^"]+)"', text)
    )
    assert shown.keys() == files.keys()
    for name, data in shown.items():
        assert base64.b64decode(data) == files[name].read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{what}_{x}"
            for what in ("accuracy", "reward")
            for x in ("iterations", "tokens", "wall_clock")
        ),
        *("final_accuracy", "differences", "clip_tokens", "clip_answers", "ratio_tokens"),
        *(
            "ratio_sequences",
            "ratio_by_length",
            "grad_norm",
            "entropy",
            "surprise",
            "length",
            "time",
        ),
    ],
)
def test_the_figures_are_there(report, name):
    assert (report.parent / f"{name}.png").stat().st_size > 5000


def test_no_figure_is_drawn_of_what_was_not_logged(report):
    assert not (report.parent / "kl_ref.png").exists()
    assert not (report.parent / "volatility.png").exists()
    assert not list(report.parent.glob("experts_*.png"))
    assert "Mixture of experts" not in report.read_text(encoding="utf-8")


def test_text_of_runs_cannot_become_markup(report):
    text = report.read_text()
    assert "<oom>" not in text
    assert "&lt;oom&gt; &amp; co" in text


def test_summaries_hold_the_same_figures(report):
    found = json.loads((report.parent / "summary.json").read_text())
    text = (report.parent / "summary.md").read_text()
    finals = {v["variant"]: v["final"] for v in found["variants"]}
    assert set(finals) == set(VARIANTS)
    for name, final in finals.items():
        assert final["mean"] == pytest.approx(
            sum(final["per_seed"].values()) / len(final["per_seed"])
        )
        assert f"| {name} | {len(final['per_seed'])} |" in text
        assert number(final["mean"]) in text
    pair = next(p for p in found["pairs"] if (p["first"], p["second"]) == ("GRPO", GSPO))
    assert pair["final"]["verdict"] == "higher"
    assert pair["final"]["p"] < 0.01
    assert found["headline"][0] in text


def test_a_report_of_nothing_but_failures_says_so(tmp_path):
    write_run(tmp_path, "GRPO", 0, status="failed", reached=0)
    write_run(tmp_path, "PPO", 0, status="running", reached=17)
    text = write_report(tmp_path).read_text()
    assert "0 of 2 runs finished and count" in text
    assert "ends higher" not in text
    assert "running, after 17 iterations" in text
    json.loads((tmp_path / "summary.json").read_text())


def test_runs_that_logged_nonsense_are_survived(tmp_path):
    write_run(tmp_path, "GRPO", 0, reached=10)
    write_run(tmp_path, "PPO", 0, reached=10)
    folder = tmp_path / "runs" / "PPO-seed0"
    rows = [{"iteration": i, "reward/mean": math.nan, "optim/grad_norm": 0.0} for i in range(1, 9)]
    rows[0]["reward/mean"] = None  # how NaN is written
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "summary.json").write_text('{"held_out": [{"iteration": 8, "val/accuracy": NaN}]}')
    (tmp_path / "compare.json").write_text("{broken")
    text = write_report(tmp_path).read_text()
    assert "not counted: no held-out accuracy" in text
    assert "compare.json cannot be read" in text
    assert "PPO-seed0: 9 values that are not finite left out" in text


# How it looks


def test_no_two_variants_look_alike():
    names = [str(i) for i in range(56)]
    found = [(v.color, str(v.dashes), v.marker) for v in charts.line_styles(names).values()]
    assert len(set(found)) == 56
    first = [v for _, v in zip(range(4), charts.line_styles(names).values(), strict=False)]
    assert len({str(v.dashes) for v in first}) == 4  # told apart without color
    assert len({v.marker for v in first}) == 4


def test_a_long_label_keeps_both_ends():
    label = "GSPO-clip_low0.003-clip_high0.004-quickstart_moe-lr0.0001-beta0.001 (n = 3)"
    short = charts.shortened(label)
    assert len(short) == 58
    assert short.startswith("GSPO-clip_low0.003")
    assert short.endswith("-lr0.0001-beta0.001 (n = 3)")
    assert charts.shortened("GRPO (n = 3)") == "GRPO (n = 3)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9123, "0.912"),
        (0.0, "0.000"),
        (0.00042, "0.0004"),
        (-0.00042, "-0.0004"),
        (1.2e-7, "1.2e-07"),
        (12345.6, "12,346"),
        (None, "-"),
    ],
)
def test_numbers_are_for_people(value, text):
    assert number(value) == text


def test_a_table_becomes_cards_and_markdown():
    table = Table(["run", "reward <x>"], [["a|b", "1 < 2"]])
    text = page("A & B", "", ["<b>"], [Section("x", "X", table=table), Section("empty", "Y")])
    assert '<th scope="row">a|b</th><td data-label="reward &lt;x&gt;">1 &lt; 2</td>' in text
    assert "<h1>A &amp; B</h1>" in text
    assert "<li>&lt;b&gt;</li>" in text
    assert '<section id="empty">' not in text
    assert r"| a\|b | 1 < 2 |" in table.markdown()
