"""The metrics that are plotted over iterations, and the spread of ratios by answer length."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlzoo.compare.reporting.collect import RecordedRun
from rlzoo.compare.reporting.measures import average

SPREAD = re.compile(r"^policy/spread/(token|sequence)_(\d+)_(\d+|up)$")
SHARE_CLIPPED = "Near 0 the axis is linear, above 0.1 % logarithmic."


@dataclass(frozen=True)
class Measure:
    """A metric that gets a figure over iterations."""

    file: str
    metric: str
    title: str
    label: str
    caption: str
    scale: str = "linear"
    sign: int = 1


CLIPPING = [
    Measure(
        "clip_tokens",
        "policy/clip_fraction",
        "Clipped tokens",
        "share of tokens",
        f"Share of tokens on which the objective's clip acted. {SHARE_CLIPPED}",
        "share",
    ),
    Measure(
        "clip_answers",
        "policy/clipped_answers",
        "Clipped answers",
        "share of answers",
        f"Share of answers with every token clipped. {SHARE_CLIPPED}",
        "share",
    ),
    Measure(
        "ratio_tokens",
        "policy/token_log_ratio_std",
        "Spread of token ratios",
        "std of log-ratio",
        "Standard deviation, over tokens, of new minus old log-probability.",
        "log",
    ),
    Measure(
        "ratio_sequences",
        "policy/sequence_log_ratio_std",
        "Spread of sequence ratios",
        "std of log-ratio",
        "The same, averaged over the tokens of an answer before its spread is taken.",
        "log",
    ),
]
TRAINING = [
    Measure(
        "grad_norm",
        "optim/grad_norm",
        "Gradient norm",
        "norm before scaling",
        "Norm of the whole gradient before it is scaled down. Objectives average differently, so "
        "levels of different objectives cannot be compared; changes over time can.",
        "log",
    ),
    Measure(
        "entropy",
        "policy/entropy",
        "Entropy of the policy",
        "nats per token",
        "Entropy of the next-token distribution. Towards 0 the policy stops exploring.",
    ),
    Measure(
        "surprise",
        "policy/log_prob",
        "Surprise at its own tokens",
        "nats per token",
        "Minus the mean log-probability of sampled tokens, a stand-in for entropy.",
        sign=-1,
    ),
    Measure(
        "kl_ref",
        "policy/kl_ref",
        "Distance from the start",
        "KL, nats per token",
        "Estimated KL divergence from the reference policy.",
    ),
    Measure(
        "length",
        "rollout/length",
        "Answer length",
        "response tokens",
        "Mean length of sampled answers. Growth without reward is padding.",
    ),
]


def middle(bucket: tuple[float, float]) -> float:
    """Return where a range of lengths stands on the axis; one without an end half as far again."""
    low, high = bucket
    return 1.5 * low if math.isinf(high) else (low + high) / 2


def length_range(bucket: tuple[float, float]) -> str:
    """Return a range of lengths as text: ``8-31``, or ``512 up`` without an end."""
    low, high = bucket
    return f"{low:g} up" if math.isinf(high) else f"{low:g}-{high:g}"


def middles(spreads: dict[tuple[float, float], float]) -> list[tuple[float, float]]:
    """Return pairs of the middle of a range of lengths and the spread there."""
    return [(middle(bucket), value) for bucket, value in sorted(spreads.items())]


def spread_by_length(runs: Sequence[RecordedRun], kind: str) -> dict[tuple[float, float], float]:
    """Return the mean spread by range of lengths, of ``token`` or ``sequence`` ratios."""
    found: dict[tuple[float, float], list[float]] = {}
    for run in runs:
        for name in run.metrics:
            match = SPREAD.match(name)
            value = average(run, name)
            if match and match[1] == kind and value:
                low, high = float(match[2]), float(match[3].replace("up", "inf"))
                found.setdefault((low, high), []).append(value)
    return {bucket: sum(values) / len(values) for bucket, values in found.items()}
