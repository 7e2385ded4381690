"""The text of docs/reproduction.md; every figure and verdict in it follows from the runs."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.reproduction.pictures import by_length
from benchmarks.reproduction.verdicts import Claim, claims, model_of, objective
from rlzoo.compare.reporting.diagnostics import length_range

HEAD = """# What the GSPO paper claims, at our scale

Written by `python -m benchmarks.reproduction`, which trains the runs below on a CPU and takes every
figure and every verdict on this page from them. The paper: *Group Sequence Policy Optimization*,
arXiv 2507.18071, whose models have billions of parameters, train for thousands of steps and write
answers of thousands of tokens. Ours have 0.1 to 1.9 million parameters and train for minutes. What
shows here shows that a mechanism exists; what does not show here is not refuted.
"""
LIMITS = """## Limits

- Each row has the seeds that are listed, of rollouts, prompts and minibatches; all start from the
  same weights. Verdicts are those of [`rlzoo compare`](compare.md): a paired t interval, corrected
  for the number of pairs of its comparison.
- Slower or faster on the way: the 95 % interval of the accuracy averaged over the run, of this pair
  alone, leaves out 0, and the difference is at least 0.01.
- One learning rate per experiment, chosen for GRPO on the same task and tuned for no objective. At
  a tight clip an update does less, so that GSPO may want a larger one.
- Spread and clip fraction are means over all updates and iterations. The first update of an
  iteration has a ratio of exactly 1 and counts in them.
- Tasks are made up and small. Models know nothing but the task, after a cold start by imitation.
- The sampler is the trainer here: both route with the same code. A serving engine with kernels of
  its own adds noise that these runs do not have.
"""


ROUTING = (
    ("moe/volatility", ".4f"),
    ("moe/volatility_free", ".4f"),
    ("moe/load_max", ".2f"),
    ("moe/unused_experts", ".2f"),
)
SECTIONS = {
    "claims": (
        "Clipping and learning",
        "GRPO with its band of 0.2 and GSPO with the paper's 3e-4 and 4e-4 on the quickstart, dense"
        " and mixture of experts, at the same learning rate. A clipped token has no gradient.",
    ),
    "replay": (
        "Routing and its replay",
        "The same mixture of experts with and without [Routing Replay](moe.md), which makes the"
        " updates of an iteration use the experts that its tokens had before the first of them."
        " Experts changed: share of a token's expert slots, over layers and later updates.",
    ),
    "stress": (
        "Old answers, used hard",
        "Two epochs of eight minibatches over the same answers, with six layers: the last updates"
        " are far from the policy that sampled. GSPO-wide has a hundred times the band (0.03 and"
        " 0.04), to tell the width of the clip from the kind of ratio.",
    ),
    "long": (
        "Long answers",
        "A word written up to 48 times, each copy behind its number: a short prompt and answers of"
        " up to 240 tokens. This is where a ratio per answer should pay: the noise of a token's"
        " ratio does not average out, that of an answer does.",
    ),
}


def render(found: dict[str, Any]) -> str:
    """Return the page.

    Args:
        found: Contents of ``docs/reproduction.json``.

    Returns:
        Markdown.
    """
    parts = [HEAD, _summary(claims(found))]
    more = {"replay": _routing, "long": _by_length}
    for name in SECTIONS:
        if name in found:
            parts.append(_section(name, found[name]))
            parts += [more[name](found[name])] if name in more else []
    return "\n".join([*parts, LIMITS])


def _summary(rows: list[Claim]) -> str:
    lines = ["| claim | here | figures |", "|---|---|---|"]
    lines += [f"| {row.claim} | **{row.verdict}** | {row.figures} |" for row in rows]
    return "\n".join(lines) + "\n"


def name_of(variant: dict[str, Any], label: str) -> str:
    """Return a variant as the page names it: objective, model and other settings."""
    axes = dict(variant["axes"])
    parts = [objective(label, variant)]
    axes.pop("config", None)
    if model := model_of(variant):
        parts.append(model)
    return ", ".join(parts + [f"{key.rpartition('.')[2]} {value}" for key, value in axes.items()])


def _table(experiment: dict[str, Any]) -> str:
    lines = [
        "| | seeds | before | after, each seed | mean | clipped tokens | token std | sequence std |"
        " largest drop |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for label, found in experiment["variants"].items():
        means = found["means"]
        after = " / ".join(f"{value:.3f}" for value in found["final"].values())
        seeds = ", ".join(map(str, found["seeds"])) + (
            f" ({found['lost']} lost)" if found["lost"] else ""
        )
        lines.append(
            f"| {name_of(found, label)} | {seeds} | {found['before']:.3f} | {after}"
            f" | {found['mean']:.3f} | {means['policy/clip_fraction']:.4f}"
            f" | {means['policy/token_log_ratio_std']:.4f}"
            f" | {means['policy/sequence_log_ratio_std']:.4f} | {max(found['drops']):.3f} |"
        )
    return "\n".join(lines) + "\n"


def _section(name: str, experiment: dict[str, Any]) -> str:
    title, text = SECTIONS[name]
    means = [found["means"]["rollout/length"] for found in experiment["variants"].values()]
    return (
        f"## {title}\n\n{text}\n\n`{experiment['config']}`, {experiment['iterations']} iterations;"
        f" answers of {fmean(means):.0f} tokens on average."
        f" Before and after: held-out accuracy, sampled. Std: of log-ratios, by token and averaged"
        f" over an answer. Largest drop: of held-out accuracy from its best, worst seed.\n\n"
        f"{_table(experiment)}\n![{title}](images/reproduction_{name}.png)\n\n{_pairs(experiment)}"
    )


def _pairs(experiment: dict[str, Any]) -> str:
    words = {"higher": "higher", "lower": "lower", "none": "no difference shown"}
    lines = []
    for pair in experiment["pairs"]:
        one, two = (experiment["variants"][pair[side]] for side in ("first", "second"))
        if pair["difference"] is None or one["axes"].get("config") != two["axes"].get("config"):
            continue
        verdict = words.get(pair["verdict"], "no verdict")
        smallest = f"; could have shown {pair['detectable']:.3f}" if pair["detectable"] else ""
        lines.append(
            f"- {name_of(one, pair['first'])} against {name_of(two, pair['second'])}: "
            f"{pair['difference']:+.3f} at the end, {verdict}{smallest}; "
            f"{pair['area']:+.3f} averaged over the run"
        )
    return "Pairs on the same model, final accuracy of the first minus the second:\n\n" + (
        "\n".join(lines) + "\n"
    )


def _by_length(experiment: dict[str, Any]) -> str:
    variants = experiment["variants"]
    buckets = sorted({b for v in variants.values() for b in by_length(v["means"], "token")})
    head = " | ".join(f"{length_range(bucket)} tokens" for bucket in buckets)
    rows = [f"| | ratio | {head} |", "|---|---|" + "---|" * len(buckets)]
    for label, found in variants.items():
        for kind in ("token", "sequence"):
            spread = by_length(found["means"], kind)
            cells = [f"{spread[b]:.5f}" if b in spread else "" for b in buckets]
            rows.append(f"| {name_of(found, label)} | {kind} | " + " | ".join(cells) + " |")
    table = "\n".join(rows)
    return (
        f"Standard deviation of log-ratios by the length of the answer:\n\n{table}\n\n"
        "![Spread of ratios by answer length](images/reproduction_by_length.png)\n"
    )


def _routing(experiment: dict[str, Any]) -> str:
    rows = [
        "| | experts changed | would have changed | busiest expert, over the mean | unused |",
        "|---|---|---|---|---|",
    ]
    for label, found in experiment["variants"].items():
        means = found["means"]
        cells = [format(means[name], form) if name in means else "" for name, form in ROUTING]
        rows.append(f"| {name_of(found, label)} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
