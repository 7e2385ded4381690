"""The figures of one comparison that the page speaks of, small enough to keep."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

from rlzoo.compare.reporting.collect import HELD_OUT, RecordedComparison, RecordedRun, collect
from rlzoo.compare.reporting.measures import average, curve, largest_drop
from rlzoo.compare.reporting.results import VariantResult, evaluate

KEPT = re.compile(
    r"policy/(clip_fraction|(token|sequence)_log_ratio_std|spread/.*)|rollout/length"
    r"|moe/(volatility|volatility_free|load_max|unused_experts)"
)


def gather(folder: Path, file: str) -> dict[str, Any]:
    """Return the figures of a comparison.

    Args:
        folder: Its output folder.
        file: Its configuration, named on the page.

    Returns:
        What the page needs, in the form of JSON.
    """
    comparison = collect(folder)
    results = evaluate(comparison)
    return {
        "config": file,
        "iterations": max(run.iterations for run in comparison.runs),
        "variants": {v.variant: _variant(comparison, v) for v in results.variants},
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "difference": _round(pair.final.difference),
                "verdict": pair.final.verdict,
                "detectable": _round(pair.final.detectable),
                "area": _round(pair.area.difference),
                "area_interval": _interval(pair.area.single),
            }
            for pair in results.pairs
        ],
    }


def _variant(comparison: RecordedComparison, result: VariantResult) -> dict[str, Any]:
    runs = comparison.of(result.variant)
    names = sorted({name for run in runs for name in run.metrics})
    held_out = curve(runs, HELD_OUT)
    return {
        "algorithm": result.algorithm,
        "axes": {key: str(value) for key, value in result.axes.items()},
        "seeds": result.seeds,
        "lost": result.lost,
        "before": _round(result.before),
        "final": {str(seed): _round(value) for seed, value in result.final.per_seed.items()},
        "mean": _round(result.final.mean),
        "drops": [_round(largest_drop(_held_out(run))) for run in runs],
        "means": {name: _round(_mean(runs, name)) for name in names if KEPT.fullmatch(name)},
        "curve": [[round(x), _round(y)] for x, y in zip(held_out.x, held_out.y, strict=True)],
        "bands": [[_round(a), _round(b)] for a, b in zip(held_out.low, held_out.high, strict=True)],
    }


def _held_out(run: RecordedRun) -> list[float]:
    return [value for _, value in run.series(HELD_OUT)]


def _mean(runs: list[RecordedRun], name: str) -> float | None:
    values = [value for run in runs if (value := average(run, name)) is not None]
    return fmean(values) if values else None


def _interval(ends: Any) -> list[float | None] | None:
    return None if ends is None else [_round(ends.low), _round(ends.high)]


def _round(value: float | None) -> float | None:
    """Return four significant digits."""
    return None if value is None else float(f"{value:.4g}")
