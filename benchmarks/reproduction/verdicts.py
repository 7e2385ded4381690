"""What of the paper did and did not show, by the same rules for every run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.reproduction.pictures import by_length

SLIGHT = 0.01
"""Accuracy, averaged over a run, below which a difference is not spoken of."""
COLLAPSE = 0.3
"""Fall of held-out accuracy from its best that is called one."""
CLIP, TOKEN = "policy/clip_fraction", "policy/token_log_ratio_std"


@dataclass(frozen=True)
class Claim:
    """One line of the summary.

    Attributes:
        claim: What the paper says.
        verdict: Whether it shows here.
        figures: What that rests on.
    """

    claim: str
    verdict: str
    figures: str


def claims(found: dict[str, Any]) -> list[Claim]:
    """Judge what can be judged.

    Args:
        found: Contents of ``docs/reproduction.json``.

    Returns:
        A line per claim for which there are runs.
    """
    rows = []
    if "claims" in found:
        rows += [_clips(found["claims"]), *_learns(found["claims"], "")]
    if "long" in found:
        rows.append(_clips(found["long"], " on long answers"))
        rows += _learns(found["long"], "long answers")
        rows += [_noise(found["long"], "token"), _noise(found["long"], "sequence")]
    if "replay" in found:
        rows += [_volatility(found["replay"]), _routing_noise(found["replay"])]
        rows += _replay(found["replay"])
    if "stress" in found:
        rows += [_steady(found["stress"]), _tight(found["stress"])]
    return rows


def _pairs(experiment: dict[str, Any], first: str, second: str) -> list[tuple[str, str]]:
    """Return labels of two objectives on the same point of all axes."""
    variants = experiment["variants"]
    named = {label: objective(label, variant) for label, variant in variants.items()}
    return [
        (a, b)
        for a, b in itertools.product(variants, variants)
        if variants[a]["axes"] == variants[b]["axes"] and (named[a], named[b]) == (first, second)
    ]


MODELS = {
    "configs/quickstart.yaml": "dense, 2 layers",
    "configs/quickstart_moe.yaml": "MoE, 2 layers, 8 experts, top 2",
    "configs/experiments/stress_dense.yaml": "dense, 6 layers",
    "configs/experiments/stress_moe.yaml": "MoE, 6 layers, 16 experts, top 2",
}


def model_of(variant: dict[str, Any]) -> str:
    """Return the model that a variant trains, empty where all train the same."""
    return MODELS.get(variant["axes"].get("config", ""), "")


def objective(label: str, variant: dict[str, Any]) -> str:
    """Return the objective of a variant, its band told apart.

    Args:
        label: Name of the variant.
        variant: Its figures.

    Returns:
        GRPO, GSPO or GSPO-wide.
    """
    return "GSPO-wide" if label.startswith("GSPO-wide") else str(variant["algorithm"])


def _clips(experiment: dict[str, Any], where: str = "") -> Claim:
    variants, shown, ratios = experiment["variants"], [], []
    for grpo, gspo in _pairs(experiment, "GRPO", "GSPO"):
        low, high = variants[grpo]["means"][CLIP], variants[gspo]["means"][CLIP]
        ratios.append(high / low if low else float("inf"))
        model = model_of(variants[gspo]) or "dense, 2 layers"
        shown.append(f"{high:.3f} against {low:.5f}, {ratios[-1]:.0f} times ({model})")
    verdict = "yes" if min(ratios) >= 30 else "in part" if min(ratios) >= 5 else "no"
    claim = f"GSPO clips about two orders of magnitude more tokens than GRPO{where}"
    return Claim(claim, verdict, "; ".join(shown))


def _compared(experiment: dict[str, Any], base: str, other: str) -> tuple[dict[str, Any], int]:
    """Return the comparison of two variants, and the sign that turns it into other minus base."""
    pair = next(p for p in experiment["pairs"] if {p["first"], p["second"]} == {base, other})
    return pair, 1 if pair["first"] == other else -1


def _at_the_end(pair: dict[str, Any], sign: int) -> str:
    words = {"none": "no difference shown", "impossible": "no verdict"}
    better = "better" if (pair["verdict"] == "higher") == (sign > 0) else "worse"
    return words.get(pair["verdict"], better)


def _learns(experiment: dict[str, Any], where: str) -> list[Claim]:
    rows = []
    for grpo, gspo in _pairs(experiment, "GRPO", "GSPO"):
        pair, sign = _compared(experiment, grpo, gspo)
        low, high = sorted(sign * end for end in pair["area_interval"] or [-1.0, 1.0])
        verdict = f"{_at_the_end(pair, sign)} at the end"
        if abs(pair["area"]) >= SLIGHT and (high < 0 or low > 0):
            verdict += ", slower on the way" if high < 0 else ", faster on the way"
        figures = (
            f"GSPO {sign * pair['difference']:+.3f} at the end, {sign * pair['area']:+.3f} averaged"
            " over the run"
        )
        model = where or model_of(experiment["variants"][gspo])
        rows.append(Claim(f"GSPO learns better at the same cost: {model}", verdict, figures))
    return rows


def _noise(experiment: dict[str, Any], kind: str) -> Claim:
    shown, growth = [], []
    for label, variant in experiment["variants"].items():
        spread = sorted(by_length(variant["means"], kind).items())
        (short, first), (long, last) = spread[0], spread[-1]
        growth.append(last / first)
        shown.append(
            f"{first:.4f} at {short[0]:g} to {short[1]:g} tokens, {last:.4f} from {long[0]:g} on"
            f" ({label})"
        )
    if kind == "token":
        verdict = "yes" if min(growth) > 1.2 else "no" if fmean(growth) < 1.2 else "in part"
        claim = "The noise of token ratios grows with the length of the answer"
    else:
        verdict = "yes" if max(growth) < 1.2 else "no"
        claim = "That of sequence ratios does not"
    return Claim(claim, verdict, "; ".join(shown))


def _volatility(experiment: dict[str, Any]) -> Claim:
    """Replay keeps the experts that are used; what routers would choose is the free figure."""
    found = {}
    for label, variant in experiment["variants"].items():
        means = variant["means"]
        found[label] = means.get("moe/volatility_free", means["moe/volatility"])
    verdict = "yes" if min(found.values()) > 0.05 else "yes, fewer" if min(found.values()) else "no"
    shown = "; ".join(f"{100 * value:.1f} % ({label})" for label, value in found.items())
    return Claim("Updates change about 10 % of the experts of a token (30B)", verdict, shown)


def _routing_noise(experiment: dict[str, Any]) -> Claim:
    variants, shown, cuts = experiment["variants"], [], []
    for free, replayed in _replayed(variants):
        one, two = variants[free]["means"][TOKEN], variants[replayed]["means"][TOKEN]
        cuts.append(1 - two / one)
        name = objective(free, variants[free])
        shown.append(f"{one:.4f} free, {two:.4f} replayed, {-100 * cuts[-1]:+.0f} % ({name})")
    verdict = "yes" if min(cuts) > 0.05 else "in part" if max(cuts) > 0.05 else "no"
    return Claim("Changing experts add noise to token ratios", verdict, "; ".join(shown))


def _replayed(variants: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels of the same objective without and with replay."""

    def replays(label: str) -> bool:
        return any(value == "old-policy" for value in variants[label]["axes"].values())

    return [
        (a, b)
        for a, b in itertools.product(variants, variants)
        if objective(a, variants[a]) == objective(b, variants[b])
        and (replays(a), replays(b)) == (False, True)
    ]


def _replay(experiment: dict[str, Any]) -> list[Claim]:
    variants, gains, verdicts = experiment["variants"], [], set()
    drops = {label: max(variant["drops"]) for label, variant in variants.items()}
    shown = [f"largest drop {drop:.3f} ({label})" for label, drop in drops.items()]
    collapsed = False
    for free, replayed in _replayed(variants):
        collapsed |= variants[free]["algorithm"] == "GRPO" and drops[free] > COLLAPSE
        pair, sign = _compared(experiment, free, replayed)
        gains.append(f"{sign * pair['difference']:+.3f} ({objective(free, variants[free])})")
        verdicts.add(_at_the_end(pair, sign))
    collapse = "GRPO collapses on a mixture of experts without Routing Replay"
    return [
        Claim(collapse, "yes" if collapsed else "no collapse", "; ".join(shown)),
        Claim("Replay makes it learn better", "; ".join(sorted(verdicts)), "; ".join(gains)),
    ]


def _steady(experiment: dict[str, Any]) -> Claim:
    variants, shown, better = experiment["variants"], [], []
    for grpo, gspo in _pairs(experiment, "GRPO", "GSPO"):
        one, two = fmean(variants[grpo]["drops"]), fmean(variants[gspo]["drops"])
        better.append(two < one / 1.5)
        shown.append(f"mean largest drop {two:.3f} against {one:.3f} ({model_of(variants[gspo])})")
    verdict = "yes" if all(better) else "in part" if any(better) else "no"
    claim = "GSPO is steadier when answers are used hard"
    return Claim(claim, verdict, "; ".join(shown))


def _tight(experiment: dict[str, Any]) -> Claim:
    variants, shown, further = experiment["variants"], [], []
    for gspo, wide in _pairs(experiment, "GSPO", "GSPO-wide"):
        one, two = fmean(variants[gspo]["drops"]), fmean(variants[wide]["drops"])
        further.append(two > 1.5 * one)
        shown.append(f"{two:.3f} with the wide band, {one:.3f} ({model_of(variants[gspo])})")
    verdict = "no" if all(further) else "in part" if any(further) else "yes"
    return Claim("It stays so with a hundred times the band", verdict, "; ".join(shown))
