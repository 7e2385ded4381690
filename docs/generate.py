"""Write what is made from the code: pages, their pictures, plans, and the package's type stubs.

python docs/generate.py           write them
python docs/generate.py --check   fail if the committed text is not what would be written
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from pathlib import Path

import plans
import stubs
import torch

from rlzoo.algorithms import Algorithm, discover
from rlzoo.display.plots import BLUE, GRAY, VERMILION, figure_file
from rlzoo.objective.gradient_weight import clip_effect, gradient_weight, ratio_unit, sources
from rlzoo.ops import sequence_ratio

DOCS = Path(__file__).parent
LENGTHS = (1, 4, 8, 16, 32, 64)
NOISE_LENGTHS = (1, 16, 256, 4096)
TOKEN_NOISE = 0.02


def plot_weight(name: str, algorithm: Algorithm, path: Path) -> None:
    """Plot g against the ratio for both signs of the advantage."""
    near = getattr(algorithm, "clip_high", 1.0) < 0.01
    reach = 3 * getattr(algorithm, "clip_high", 1.0) if near else 1.5
    ratios = [max(0.01, 1 + reach * (i / 150 - 1)) for i in range(301)]
    if not near:
        ratios = [0.02 + i * 0.02 for i in range(301)]
    with figure_file(path, size=(5.2, 2.6), dpi=90) as figure:
        axes = figure.add_subplot()
        for advantage, color, style, label in (
            (1.0, BLUE, "-", "A > 0"),
            (-1.0, VERMILION, "--", "A < 0"),
        ):
            weights = [gradient_weight(algorithm, r, advantage) for r in ratios]
            axes.plot(ratios, weights, color=color, ls=style, lw=2, label=label)
        axes.axvline(1, color=GRAY, lw=0.8, ls=":")
        axes.set(xlabel="ratio", ylabel="gradient weight g", title=name)
        if near:
            axes.ticklabel_format(useOffset=False)
            axes.set_xticks([1 - reach, 1 - reach / 2, 1, 1 + reach / 2, 1 + reach])
        axes.legend()


def defaults(cls: type[Algorithm]) -> str:
    """Return a constructor's arguments with their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    return ", ".join(f"`{p.name}={p.default}`" for p in parameters) or "none"


def algorithms_page() -> str:
    """Return the text of docs/algorithms.md."""
    zoo = discover()
    lines = [
        "# Objectives",
        "",
        "<!-- Written by docs/generate.py from the docstrings; edit those. -->",
        "",
        f"{len(zoo)} objectives, each a ratio and a clip. `rlzoo algorithms NAME` prints the same.",
        "The pictures show the effective gradient weight g of a token that is an answer of its",
        "own: `d loss / d log_prob = -(weight of the token in the mean) * g * A`. At ratio 1 it is",
        "1 for a plain policy gradient; 0 means the clip took the gradient.",
        "",
        "| name | in a sentence | ratio per | clip acts on | aggregation | advantage | arXiv |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cls in zoo.items():
        first = (inspect.getdoc(cls) or "").splitlines()[0]
        lines.append(
            f"| [{name}](#{name.lower()}) | {first} | {ratio_unit(cls())} | {clip_effect(cls())} "
            f"| `{cls.aggregation}` | `{cls.advantage}` | {sources(cls)} |"
        )
    for name, cls in zoo.items():
        text = (inspect.getdoc(cls) or "").replace("\nArgs:\n", "\nSettings:\n\n")
        lines += ["", f"## {name}", "", *_unindent_settings(text), ""]
        lines += [f"Defaults: {defaults(cls)}. Aggregation `{cls.aggregation}`,"]
        lines += [f"advantage `{cls.advantage}`" + _needs(cls) + ".", ""]
        lines += measured(name)
        lines += [f"![Gradient weight of {name}](images/algorithms/{name}.png)"]
    return "\n".join(lines) + "\n"


def measured(name: str) -> list[str]:
    """Return what the quickstart reached with an objective, if benchmarks/quickstart.py has run."""
    path = DOCS / "results.json"
    reached = json.loads(path.read_text()).get(name, {}) if path.exists() else {}
    if not reached:
        return []
    each = ", ".join(f"{accuracy:.3f}" for accuracy in reached.values())
    seeds = "seed " + ", ".join(reached) if len(reached) == 1 else "seeds " + ", ".join(reached)
    return [f"Sampled held-out accuracy at the end of the quickstart: {each} ({seeds}).", ""]


def _needs(cls: type[Algorithm]) -> str:
    extra = f"; reads {', '.join(f'`{n}`' for n in sorted(cls.needs))}" if cls.needs else ""
    unit = getattr(cls, "unit", "row")
    return extra + (f"; a micro-batch never cuts a {unit}" if unit != "row" else "")


def _unindent_settings(text: str) -> list[str]:
    lines, inside = [], False
    for line in text.splitlines():
        inside = inside or line == "Settings:"
        if inside and line.startswith("    ") and not line.startswith("     "):
            lines.append("- " + line.strip())
        elif inside and line.startswith("     "):
            lines.append("  " + line.strip())
        else:
            lines.append(line)
    return lines


def chance_of_leaving(length: int, band: float) -> float:
    """Return P(|log s| > band) for iid token log-ratios of standard deviation TOKEN_NOISE."""
    return math.erfc(band * math.sqrt(length) / (TOKEN_NOISE * math.sqrt(2)))


def drift(length: int, per_token: float) -> tuple[float, float]:
    """Return the product of the token ratios of an answer, and its length-normalized ratio."""
    new = torch.full((1, length), math.log(per_token), dtype=torch.float64)
    old, mask = torch.zeros_like(new), torch.ones_like(new, dtype=torch.bool)
    return float((new - old).sum().exp()), float(sequence_ratio(new, old, mask))


def sequences_page() -> str:
    """Return the text of docs/why_sequences.md."""
    rows = [
        f"| {n} | {drift(n, 1.02)[0]:.3f} | {drift(n, 1.02)[1]:.3f} "
        f"| {drift(n, 0.98)[0]:.3f} | {drift(n, 0.98)[1]:.3f} |"
        for n in LENGTHS
    ]
    noise = [
        f"| {n} | {TOKEN_NOISE / math.sqrt(n):.5f} | {chance_of_leaving(n, 4e-4):.2f} "
        f"| {2.8 * TOKEN_NOISE / math.sqrt(n):.4f} |"
        for n in NOISE_LENGTHS
    ]
    left = next(n for n in range(1, 65) if not 0.8 <= drift(n, 1.02)[0] <= 1.2)
    return f"""# Why a ratio per answer, and what it does not do

<!-- Written by docs/generate.py; every number here is computed there. -->

A ratio per token treats every token as a decision of its own. The reward judges the whole answer.
GSPO (arXiv 2507.18071) takes one ratio per answer, the geometric mean of its token ratios, and
clips the whole answer.

## Drift

Suppose that every token has moved by the same 2 %. The product of the token ratios is the true
likelihood ratio of the answer; it explodes with length. The length-normalized ratio does not move.

| length | product, 1.02 per token | normalized | product, 0.98 per token | normalized |
|---|---|---|---|---|
{chr(10).join(rows)}

The product leaves [0.8, 1.2] at length {left}; the normalized ratio never does. So one clip band
serves answers of all lengths. But 1.02 is far outside GSPO's own band of [1 - 3e-4, 1 + 4e-4]. With
a positive advantage GSPO would clip every one of these answers. The table shows that
the ratio does not depend on length, not that the answer keeps its gradient.

## Noise

Normalizing removes the dependence on length for drift, which is common to all tokens, but not for
noise. If token log-ratios scatter independently with standard deviation {TOKEN_NOISE}, log s
scatters with {TOKEN_NOISE} / sqrt(length), and the chance of leaving a band of 4e-4 on either side
depends strongly on length:

| length | standard deviation of log s | outside 4e-4 | band that would clip about 1 in 200 |
|---|---|---|---|
{chr(10).join(noise)}

The paper's 3e-4 and 4e-4 therefore suit answers of thousands of tokens. For short answers widen
the band, about as 1 / sqrt(length), or set it by `policy/clip_fraction`. rlzoo warns at the start
when the noise of the log-probs alone exceeds the band, and during training when most of the tokens
are clipped.

![Drift and noise against answer length](images/why_sequences.png)
"""


def plot_sequences(path: Path) -> None:
    """Plot the drift and the noise against length."""
    with figure_file(path, size=(9, 3.4), dpi=100) as figure:
        left, right = figure.subplots(1, 2)
        lengths = list(range(1, 65))
        for per_token, color in ((1.02, BLUE), (0.98, VERMILION)):
            pairs = [drift(n, per_token) for n in lengths]
            left.plot(
                lengths, [p for p, _ in pairs], color=color, label=f"product, {per_token} per token"
            )
            left.plot(lengths, [s for _, s in pairs], color=color, ls="--", label="normalized")
        left.set(
            xlabel="answer length, tokens",
            ylabel="ratio of the answer",
            title="drift of 2 % per token",
        )
        left.set_yscale("log")
        left.set_yticks([0.3, 0.5, 1, 2, 3.5], ["0.3", "0.5", "1", "2", "3.5"])
        left.set_yticks([], minor=True)
        left.legend(fontsize=8)
        long = [2**i for i in range(15)]
        for band, color, style in ((4e-4, BLUE, "-"), (4e-3, VERMILION, "--"), (4e-2, GRAY, ":")):
            chances = [chance_of_leaving(n, band) for n in long]
            right.plot(long, chances, color=color, ls=style, lw=2, label=f"band {band:g}")
        right.set_xscale("log", base=2)
        right.set(
            xlabel="answer length, tokens",
            ylabel="share of answers outside",
            title=f"noise of {TOKEN_NOISE} per token",
        )
        right.legend(fontsize=8)


def main() -> None:
    """Write the pages, or compare them with what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    pages = {"algorithms.md": algorithms_page(), "why_sequences.md": sequences_page()}
    pages["scaling.md"] = plans.filled((DOCS / "scaling.md").read_text())
    stale = [
        n for n, text in pages.items() if not (DOCS / n).exists() or (DOCS / n).read_text() != text
    ]
    written = stubs.stubs()
    stale += [str(p) for p, text in written.items() if not p.exists() or p.read_text() != text]
    images = DOCS / "images" / "algorithms"
    missing = [name for name in discover() if not (images / f"{name}.png").exists()]
    if check:
        if stale or missing:
            sys.exit(f"run `python docs/generate.py`: stale {stale}, pictures missing {missing}")
        return
    images.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (DOCS / name).write_text(text)
    for path, text in written.items():
        path.write_text(text)
    for name, cls in discover().items():
        plot_weight(name, cls(), images / f"{name}.png")
    plot_sequences(DOCS / "images" / "why_sequences.png")


if __name__ == "__main__":
    main()
