"""The tables of an inspection, for the terminal."""

from __future__ import annotations

import math
from typing import Any

from rlzoo.display.tables import aligned

COLUMNS = (
    ("loss", "loss"),
    ("kept_tokens", "tokens kept"),
    ("kept_answers", "answers"),
    ("kept_pull", "pull"),
    ("weight_min", "g min"),
    ("weight_median", "median"),
    ("weight_max", "max"),
    ("weight_ess", "g ESS"),
    ("grad_norm", "|grad|"),
    ("signal_to_noise", "signal/noise"),
)
SHARES = {"kept_tokens", "kept_answers", "kept_pull", "weight_ess"}
WIDEST = 10
"""Most objectives whose cosines fit a terminal."""


def lines_of(found: dict[str, Any]) -> str:
    """Return the tables of an inspection.

    Args:
        found: What ``examine`` returned.

    Returns:
        Lines for the terminal.
    """
    seen, ratios = found["rollouts"], found["ratios"]
    steps = found["updates"]
    moved = f"moved by {steps} update{'' if steps == 1 else 's'} ({found['optimizer']})"
    lines = [
        f"{seen['answers']} answers to {seen['prompts']} prompts, {seen['tokens']} tokens, reward "
        f"{seen['reward_mean']:.3f}, {seen['groups_with_signal']} groups with signal; sampled "
        f"after iteration {found['iterations']}",
        f"policy {moved if steps else 'as it sampled: every ratio is 1'}",
        "",
    ]
    lines += aligned(
        [
            ("ratio of a", "ESS", "log-ratio std", "min", "max"),
            *(
                (
                    title,
                    percent(ratios[f"{key}_ess"]),
                    *(number(ratios[f"{key}_log_ratio_{part}"]) for part in ("std", "min", "max")),
                )
                for key, title in (
                    ("token", "token"),
                    ("answer", "answer, product"),
                    ("answer_mean", "answer, per token"),
                )
            ),
        ]
    )
    facts = found["objectives"]
    rows = [("objective", *(title for _, title in COLUMNS))]
    for name, fact in facts.items():
        cells = (percent(fact[k]) if k in SHARES else number(fact[k]) for k, _ in COLUMNS)
        rows.append((name, *cells))
    lines += ["", *aligned(rows), "", *cosine_lines(found["cosine"]), ""]
    for name, fact in facts.items():
        settings = ", ".join(f"{k}={v}" for k, v in fact["settings"].items())
        parts = (f"{fact['aggregation']}, {fact['advantage']}", settings, *fact["notes"])
        lines.append(f"{name}: {'; '.join(part for part in parts if part)}")
    lines += [f"{name} is left out: {why}" for name, why in found["left_out"].items()]
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])])


def cosine_lines(cosine: dict[str, Any]) -> list[str]:
    """Return the matrix of cosines, or where it is if it is too wide."""
    names = cosine["names"]
    if len(names) > WIDEST:
        return [f"cosines of {len(names)} objectives: see the picture or the file"]
    table = [("cosine", *names)]
    for name, row in zip(names, cosine["matrix"], strict=True):
        table.append((name, *(f"{x:.3f}" if math.isfinite(x) else "-" for x in row)))
    return aligned(table)


def number(value: float) -> str:
    """Return a number of about four digits."""
    if math.isnan(value):
        return "-"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share in percent; 100% only for all."""
    text = f"{100 * share:.1f}%"
    return ">99.9%" if text == "100.0%" and share < 1 - 1e-9 else text
