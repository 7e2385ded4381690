"""The report of a comparison, from the folders of its runs to the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlzoo.compare.reporting import tables
from rlzoo.compare.reporting.collect import RecordedComparison, collect, same_start
from rlzoo.compare.reporting.figures import Picture, plot_figures
from rlzoo.compare.reporting.page import Section, markdown, page
from rlzoo.compare.reporting.results import Results, evaluate
from rlzoo.compare.reporting.sentences import (
    DIFFERENT_START,
    caveats,
    corrections,
    headline,
    plural,
)
from rlzoo.display.json_files import write_json

FINAL = (
    "Final accuracy: held-out accuracy at the last evaluation of a run. Area under the curve: "
    "held-out accuracy averaged over iterations, which rewards learning early."
)
PAIRED = (
    "Differences are taken seed by seed. A verdict needs the t interval of their mean, widened "
    "for the number of pairs, to leave out 0. 'Smallest shown' is the true difference that such an "
    "interval would leave 0 out of with 80 % power, given the spread seen here. The p of the "
    "exact sign-flip test is a second opinion that assumes less; with n seeds it is never below "
    "2 / 2^n."
)
STABILITY = (
    "Largest fall below the best so far, the worst seed of each variant; reward smoothed over 5 "
    "iterations. Noise alone makes such falls, more of them with more evaluations."
)
CLIPPING = (
    "Means over iterations and seeds. Objectives clip different things in different bands, and a "
    "clipped token loses its gradient under some (GRPO, GSPO) and keeps it under others (CISPO): a "
    "share is no measure of quality. With one update per iteration it is 0 by construction."
)


def write_report(output_dir: Path) -> Path:
    """Write the report of all runs that are there, whatever became of them.

    Beside ``report.html``, which holds its pictures, stand the pictures, ``summary.json`` and
    ``summary.md``.

    Args:
        output_dir: Folder of a comparison, with ``runs/`` in it.

    Returns:
        Path of ``report.html``.

    Raises:
        UserError: If there are no runs.
    """
    output_dir = Path(output_dir)
    comparison = collect(output_dir)
    results = evaluate(comparison)
    pictures = plot_figures(comparison, results, output_dir)
    title = "Comparison of " + ", ".join(comparison.variants[:4])
    if len(comparison.variants) > 4:
        title = f"Comparison of {len(comparison.variants)} variants"
    lines = headline(results, comparison)
    parts = sections(comparison, results, pictures)
    report = output_dir / "report.html"
    report.write_text(page(title, subtitle(comparison), lines, parts), encoding="utf-8")
    (output_dir / "summary.md").write_text(markdown(title, lines, parts), encoding="utf-8")
    write_json(output_dir / "summary.json", as_json(comparison, results, lines))
    return report


def sections(
    comparison: RecordedComparison, results: Results, pictures: list[Picture]
) -> list[Section]:
    """Return the parts of the report, in order."""

    def pictures_of(section: str) -> list[Picture]:
        return [picture for picture in pictures if picture.section == section]

    start = first_rollouts(comparison.plan)
    return [
        *([start] if start.urgent else []),
        Section(
            "accuracy",
            "Final accuracy",
            [FINAL],
            tables.accuracies(results),
            pictures_of("accuracy"),
        ),
        Section(
            "pairs",
            "Pairs of variants",
            [PAIRED, corrections(results)] if results.pairs else (),
            tables.pairs(results),
            pictures_of("pairs"),
        ),
        Section("learning", "Learning curves", (), None, pictures_of("learning")),
        Section("stability", "Stability", [STABILITY], tables.stability(results)),
        Section(
            "clipping",
            "Clipping and ratios",
            [CLIPPING],
            tables.clipping(results),
            pictures_of("clipping"),
        ),
        Section("experts", "Mixture of experts", (), None, pictures_of("experts")),
        Section("training", "Training", (), None, pictures_of("training")),
        Section("time", "Cost", (), tables.budget(results), pictures_of("time")),
        Section("caveats", "What this does not show", points=caveats(results, comparison)),
        *([] if start.urgent else [start]),
        Section("setup", "Setup", (), tables.setup(comparison)),
        Section("runs", "Runs", (), tables.runs(comparison), points=comparison.notes),
    ]


def first_rollouts(plan: dict[str, Any]) -> Section:
    """Return what the check of the first rollouts has found: do all variants start alike?"""
    same, table = same_start(plan), tables.first_rollouts(plan)
    if same is None:
        text = "Whether all variants of a seed sampled the same first answers is not known."
    elif same:
        text = "The variants of a seed sampled the same first answers, so they started alike."
    else:
        text = DIFFERENT_START
    return Section("first_rollouts", "Same start", [text], table, urgent=same is False)


def subtitle(comparison: RecordedComparison) -> str:
    """Return what was run, in one line."""
    seeds = {run.seed for run in comparison.runs}
    lengths = {int(run.summary.get("iterations", 0)) for run in comparison.used}
    parts = [plural(len(comparison.variants), "variant"), plural(len(seeds), "seed")]
    if lengths:
        parts.append(plural(max(lengths), "iteration"))
    base = tables.shared_settings(comparison.plan).get("base")
    if base:
        parts.append(f"base configuration {base}")
    return ", ".join(parts)


def as_json(comparison: RecordedComparison, results: Results, lines: list[str]) -> dict[str, Any]:
    """Return the figures and what they rest on."""
    runs = [
        {"run": r.slug, "variant": r.variant, "seed": r.seed, "problem": r.problem}
        for r in comparison.runs
    ]
    return {"headline": lines, **results.as_json(), "runs": runs, "notes": comparison.notes}
