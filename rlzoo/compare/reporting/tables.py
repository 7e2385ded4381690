"""The tables of the report."""

from __future__ import annotations

import json
from typing import Any

from rlzoo.compare.reporting.collect import RecordedComparison, objectives
from rlzoo.compare.reporting.page import Table
from rlzoo.compare.reporting.results import Results
from rlzoo.compare.reporting.sentences import number, verdict
from rlzoo.compare.reporting.statistics import Interval


def accuracies(results: Results) -> Table:
    """Return final accuracy and area under the curve of each variant."""
    head = ["variant", "seeds", "before", "final accuracy", "95 % bootstrap", "95 % t"]
    head += ["area under the curve", "area, 95 % t"]
    rows = [
        [
            v.variant,
            str(len(v.seeds)),
            number(v.before),
            number(v.final.mean),
            ends(v.final.bootstrap),
            ends(v.final.t),
            number(v.area.mean),
            ends(v.area.t),
        ]
        for v in results.variants
    ]
    return Table(head, rows)


def pairs(results: Results) -> Table:
    """Return the comparison of each pair."""
    head = ["pair", "verdict", "seeds", "difference", "interval, all pairs", "95 %, this pair"]
    head += ["p (t)", "p (sign flips)", "smallest shown", "area: difference, 95 %"]
    rows = [
        [
            f"{p.first} minus {p.second}",
            verdict(p),
            str(p.final.n),
            number(p.final.difference),
            interval(p.final.simultaneous),
            interval(p.final.single),
            number(p.final.p),
            number(p.final.p_sign_flip),
            number(p.final.detectable),
            f"{number(p.area.difference)}, {interval(p.area.single)}",
        ]
        for p in results.pairs
    ]
    return Table(head, rows)


def stability(results: Results) -> Table:
    """Return drops and skipped updates of each variant."""
    head = ["variant", "largest drop, held-out", "largest drop, smoothed reward"]
    head += ["updates skipped", "gradient norm"]
    rows = [
        [
            v.variant,
            number(v.measures["drop_held_out"]),
            number(v.measures["drop_reward"]),
            share(v.measures["skipped"]),
            number(v.measures["grad_norm"]),
        ]
        for v in results.variants
    ]
    return Table(head, rows)


def clipping(results: Results) -> Table:
    """Return mean clip fractions of each variant."""
    rows = [
        [v.variant, share(v.measures["clip_fraction"]), share(v.measures["clipped_answers"])]
        for v in results.variants
    ]
    return Table(["variant", "tokens clipped", "answers clipped whole"], rows)


def budget(results: Results) -> Table:
    """Return what each variant has spent, a mean over its runs."""
    keys = ("iterations", "updates", "tokens", "run_seconds")
    head = ["variant", "iterations", "updates", "response tokens", "seconds training", "length"]
    rows = [
        [
            v.variant,
            *("-" if v.measures[key] is None else f"{v.measures[key]:,.0f}" for key in keys),
            number(v.measures["length"], 1),
        ]
        for v in results.variants
    ]
    return Table(head, rows)


def first_rollouts(plan: dict[str, Any]) -> Table:
    """Return, for each seed and point of the axes, who sampled which first answers."""
    found = plan.get("first_rollouts")
    groups = found.get("groups") if isinstance(found, dict) else None
    rows = []
    for group in groups or []:
        of: dict[str, list[str]] = {}
        for slug, digest in group["hashes"].items():
            of.setdefault(str(digest), []).append(str(slug))
        runs = "; ".join(f"{digest}: {', '.join(slugs)}" for digest, slugs in of.items())
        same = {True: "identical", False: "NOT identical"}.get(group["identical"], "unknown")
        axes = f", {json.dumps(group['axes'])}" if group.get("axes") else ""
        rows.append([f"seed {group['seed']}{axes}", same, runs])
    return Table(["runs of", "first answers", "hash: runs"], rows)


def runs(comparison: RecordedComparison) -> Table:
    """Return what became of each run."""
    rows = [
        [
            run.slug,
            run.variant,
            str(run.seed),
            f"not counted: {run.problem}" if run.problem else "counts",
            str(run.summary.get("iterations") or run.iterations or "-"),
            "-" if run.seconds is None else f"{run.seconds:,.0f}",
            str(run.summary.get("config_hash", "-")),
        ]
        for run in comparison.runs
    ]
    head = ["run", "variant", "seed", "state", "iterations", "seconds", "config hash"]
    return Table(head, rows)


def setup(comparison: RecordedComparison) -> Table:
    """Return what was compared, from the plan and from what the runs wrote."""
    seeds = sorted({run.seed for run in comparison.runs})
    rows = [["variants", ", ".join(comparison.variants)], ["seeds", ", ".join(map(str, seeds))]]
    for key, value in shared_settings(comparison.plan).items():
        if value not in ("null", "{}"):
            rows.append([key, value])
    for entry in objectives(comparison.plan):
        own = {**(entry.get("settings") or {}), **(entry.get("overrides") or {})}
        text = ", ".join(f"{key}: {json.dumps(value)}" for key, value in own.items())
        rows.append([f"settings of {entry['label']}", text or "the objective's defaults"])
    versions: dict[str, set[str]] = {}
    for run in comparison.used:
        for name, found in (run.summary.get("versions") or {}).items():
            versions.setdefault(name, set()).add(str(found))
    rows += [[f"version of {name}", ", ".join(sorted(v))] for name, v in versions.items()]
    return Table(["setting", ""], rows)


def shared_settings(plan: dict[str, Any]) -> dict[str, str]:
    """Return the settings of a plan that hold for all runs."""
    special = ("runs", "first_rollouts", "algorithms", "seeds")
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in plan.items()
        if key not in special
    }


def interval(found: Interval | None) -> str:
    """Return the ends of an interval."""
    return ends((found.low, found.high) if found else None)


def ends(found: tuple[float, float] | None) -> str:
    """Return the ends of an interval."""
    return f"{number(found[0])} to {number(found[1])}" if found else "-"


def share(value: float | None) -> str:
    """Return a share in per cent."""
    if value is None:
        return "-"
    return f"{100 * value:.2f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"
