"""The sentences of the report: verdicts, and the limits of what the figures show."""

from __future__ import annotations

from collections import Counter

from rlzoo.compare.reporting.collect import RecordedComparison, objectives, same_start
from rlzoo.compare.reporting.results import Results, VariantPair
from rlzoo.compare.reporting.statistics import PairedDifference

MANY = 6
EDGE = 0.02
NO_ROOM = (
    "All final accuracies are close to 0, or all close to 1: that leaves no room for differences. "
    "Make the task easier or harder, or change the budget."
)
SAME_SETTINGS = (
    "Settings are shared: learning rate, batch and number of updates are the same for all "
    "variants and were not tuned for any of them. A variant that trails here may lead with "
    "settings of its own."
)
OWN_SETTINGS = (
    "Settings are shared, but for those of {names} (see Setup); none was tuned here. A variant "
    "that trails may lead with other settings."
)
DIFFERENT_START = (
    "The variants of a seed did NOT sample the same first answers: they differ in more than the "
    "objective, and no difference between them can be put down to it alone."
)
SMALL_SCALE = (
    "Scale: what holds for this model, task and budget need not hold for larger models, longer "
    "answers or longer training."
)
SEEDS_ONLY = (
    "Intervals cover chance between seeds only. All seeds answer the same held-out prompts, and "
    "another set of prompts would move all accuracies. They are optimistic if settings were chosen "
    "on these prompts."
)
FEW_SEEDS = (
    "With {n} seeds per variant the bootstrap interval is too narrow (with 3 it holds the true "
    "mean in about 3 of 4 cases, not 19 of 20). Verdicts use the t interval, which assumes "
    "differences that are roughly normal; with so few seeds that cannot be checked."
)
SURVIVORS = (
    "Not in the figures: {lost} of {variants}. The figures describe the runs that "
    "finished; a variant whose bad runs died looks better than it is."
)
UNEQUAL = (
    "Runs that count have different numbers of iterations ({numbers}). Each is judged at its own "
    "last evaluation."
)
WALL_CLOCK = (
    "Wall-clock depends on what else the machine did. Compare it only if the runs had the machine "
    "to themselves, or shared it alike."
)


def headline(results: Results, comparison: RecordedComparison) -> list[str]:
    """Return the summary, the most important first.

    Args:
        results: The figures.
        comparison: What was read.

    Returns:
        Sentences.
    """
    shown = [p for p in results.pairs if p.final.verdict in ("higher", "lower")]
    silent = [p for p in results.pairs if p.final.verdict == "none"]
    open_ = [p for p in results.pairs if p.final.verdict == "impossible"]
    lines = [DIFFERENT_START] if same_start(comparison.plan) is False else []
    lines += differences(shown)
    if silent:
        equal = "no difference shown. That is not evidence that they are equal."
        lines.append(listed(silent, equal))
        smallest = [p.final.detectable for p in silent if p.final.detectable is not None]
        if smallest:
            several = ", depending on the pair" if len(smallest) > 1 else ""
            lines.append(
                "The smallest difference in held-out accuracy that these seeds would have shown "
                f"in four of five such comparisons: {between(smallest)}{several}."
            )
    if open_:
        lines.append(no_verdicts(open_))
    finals = [v.final.mean for v in results.variants if v.final.mean is not None]
    if finals and (max(finals) < EDGE or min(finals) > 1 - EDGE):
        lines.append(NO_ROOM)
    if not results.pairs:
        lines.append("There is no pair of variants that differ in one thing: nothing is compared.")
    lines.append(counted(comparison))
    return lines


def differences(pairs: list[VariantPair]) -> list[str]:
    """Return a sentence for each variant that others beat, with all that do.

    Args:
        pairs: Those with a verdict of higher or lower.

    Returns:
        Sentences.
    """
    behind: dict[str, list[tuple[str, PairedDifference]]] = {}
    for pair in pairs:
        better, worse = pair.first, pair.second
        if pair.final.verdict == "lower":
            better, worse = worse, better
        behind.setdefault(worse, []).append((better, pair.final))
    lines = []
    for worse, found in behind.items():
        sizes = [abs(f.difference) for _, f in found if f.difference is not None]
        ends = [abs(e) for _, f in found if (i := f.simultaneous) for e in (i.low, i.high)]
        seeds = sorted({f.n for _, f in found})
        one = len(found) == 1
        *names, last = [name for name, _ in found]
        better = f"{', '.join(names)} and {last} each end" if names else f"{last} ends"
        lines.append(
            f"{better} higher than {worse} by {between(sizes)} in held-out accuracy "
            f"({'interval' if one else 'intervals within'} {between(ends)}, "
            f"{' or '.join(map(str, seeds))} common seeds, corrected for all pairs)."
        )
    return lines


def between(values: list[float]) -> str:
    """Return the smallest and the largest, or the one that there is."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def listed(pairs: list[VariantPair], what: str) -> str:
    """Return the pairs by name, or how many they are."""
    if len(pairs) > MANY:
        return f"{len(pairs)} pairs (see the table): {what}"
    return "; ".join(f"{p.first} and {p.second}" for p in pairs) + f": {what}"


def no_verdicts(pairs: list[VariantPair]) -> str:
    """Return the sentence of pairs about which nothing can be said, and why."""
    fewest = {p.final.n for p in pairs}
    if fewest == {1}:
        why = "one common seed cannot show how much of a difference is chance"
    elif max(fewest) < 2:
        why = "fewer than two seeds in common"
    else:
        why = "fewer than two seeds in common, or differences that are all the same number"
    return listed(pairs, f"no verdict, {why}.")


def counted(comparison: RecordedComparison) -> str:
    """Return how many runs there are, and what became of them."""
    runs = comparison.runs
    text = f"{len(comparison.used)} of {len(runs)} runs finished and count"
    rest = Counter(run.status for run in runs if run.problem)
    if rest:
        listed = ", ".join(
            f"{n} {'done but without results' if status == 'done' else status}"
            for status, n in rest.items()
        )
        return f"{text}; not in the figures: {listed}."
    return f"{text}."


def verdict(pair: VariantPair) -> str:
    """Return the verdict of a pair in a few words."""
    found = pair.final
    if found.verdict == "none":
        same = "" if found.deviation else ": the same accuracy on every seed"
        return f"no difference shown{same}"
    if found.verdict != "impossible":
        return f"{pair.first} {found.verdict}"
    if found.n < 2:
        return f"no verdict: {plural(found.n, 'common seed')}"
    return "no verdict: the same difference on every seed, spread unknown"


def corrections(results: Results) -> str:
    """Return the note on comparing many pairs."""
    m = results.comparisons
    if m < 2:
        return "One pair is compared; its level needs no correction for further pairs."
    return (
        f"{m} pairs are compared. At 5 % each, one in twenty would differ by chance; intervals of "
        f"verdicts therefore leave out 5 % / {m} each (Bonferroni), so that with 95 % all of them "
        "hold together. Only final held-out accuracy gets verdicts; all else is description."
    )


def caveats(results: Results, comparison: RecordedComparison) -> list[str]:
    """Return what a reader must keep in mind."""
    own = [str(a["label"]) for a in objectives(comparison.plan) if a.get("overrides")]
    shared = OWN_SETTINGS.format(names=", ".join(own)) if own else SAME_SETTINGS
    lines = [shared, SMALL_SCALE, SEEDS_ONLY]
    most = max((len(v.seeds) for v in results.variants), default=0)
    if 2 <= most < 8:
        lines.append(FEW_SEEDS.format(n=f"at most {most}"))
    lost = [v for v in results.variants if v.lost]
    if lost:
        names = ", ".join(f"{v.variant} ({v.lost})" for v in lost)
        lines.append(
            SURVIVORS.format(lost=plural(sum(v.lost for v in lost), "run"), variants=names)
        )
    lengths = sorted({int(run.summary.get("iterations", 0)) for run in comparison.used})
    if len(lengths) > 1:
        lines.append(UNEQUAL.format(numbers=", ".join(map(str, lengths))))
    return [*lines, WALL_CLOCK]


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for people: ``0.912``, ``3.1e-05``, ``12,345``, or ``-`` for None."""
    if value is None:
        return "-"
    if value == 0 or 10.0**-digits <= abs(value) < 1000:
        return f"{value:.{digits}f}"
    if 0.5 * 10.0 ** -(digits + 1) <= abs(value) < 1:
        return f"{value:.{digits + 1}f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 seed``, ``3 seeds``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
