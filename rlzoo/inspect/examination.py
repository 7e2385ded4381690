"""The inspection of a checkpoint: a table, a JSON file and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlzoo.algorithms import Algorithm, discover
from rlzoo.display.json_files import write_json
from rlzoo.errors import UserError
from rlzoo.inspect.frozen import Frozen, InspectedRun, freeze, inspected, move
from rlzoo.inspect.gradients import cosines, gradients
from rlzoo.inspect.picture import plot_inspection
from rlzoo.inspect.tokens import Chosen, choose, find, look, ratio_summary, settings_of, summary
from rlzoo.inspect.words import lines_of
from rlzoo.training.checkpoint import read_checkpoint

DEFAULT = ("GRPO", "GSPO", "CISPO")
NOTES = (
    "policy term alone: no KL penalty, entropy bonus, correction or critic",
    "g: d loss / d log_prob = -(weight in the mean) * g * advantage; 1 is a plain policy gradient",
    "kept and g are over tokens with an advantage; a clipped token has g = 0",
    "pull: tokens kept, each counted by its weight * |advantage| * (1 - probability)",
    "signal/noise: |mean|^2 / (variance / n) over prompt groups; noise alone gives about 1",
)


@dataclass(frozen=True)
class Request:
    """What is to be looked at.

    Args:
        algorithms: Names or dotted paths; the run's own and three others if empty.
        updates: K, optimizer steps between sampling and looking.
        prompts: P.
        group_size: G; the run's if None.
        seed: Seed of prompts and answers.
    """

    algorithms: tuple[str, ...] = ()
    updates: int = 1
    prompts: int = 32
    group_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"updates": 0, "prompts": 1, "group_size": 1, "seed": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UserError(f"{name} must be >= {bound}, got {value}")


def examine(run: InspectedRun, request: Request) -> dict[str, Any]:
    """Look at objectives on frozen answers.

    Args:
        run: Its policy is moved by ``request.updates`` steps.
        request: What is to be looked at.

    Returns:
        Everything that was found, ready for JSON.

    Raises:
        UserError: If no objective can be looked at.
    """
    settings = run.module.settings
    size = request.group_size or settings.group_size
    classes = named(request.algorithms) or [type(settings.algorithm), *named(DEFAULT)]
    chosen, left_out = choose(classes, settings, size)
    frozen = freeze(run, request.prompts, size, request.seed)
    frozen, state = move(run, frozen, request.updates)
    views, facts = {}, {}
    for item in chosen:
        try:
            view = look(item, frozen)
            facts[item.name] = {**described(item), **summary(view)}
        except UserError as error:
            left_out[item.name] = str(error)
            continue
        views[item.name] = view
    if not views:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UserError(f"no objective can be looked at on these answers: {why}")
    found = gradients(run.module.policy, frozen, views)
    for name, gradient in found.items():
        facts[name]["grad_norm"] = gradient.norm
        facts[name]["signal_to_noise"] = gradient.signal_to_noise
    return {
        "iterations": run.iterations,
        "updates": request.updates,
        "optimizer": state,
        "seed": request.seed,
        "rollouts": counts(frozen),
        "ratios": ratio_summary(frozen),
        "objectives": facts,
        "cosine": {"names": list(found), "matrix": cosines(found)},
        "left_out": left_out,
        "notes": list(NOTES),
    }


def named(names: Sequence[str]) -> list[type[Algorithm]]:
    """Return the objectives of some names; ``all`` is the whole zoo."""
    if list(names) == ["all"]:
        return list(discover().values())
    return [find(name) for name in names]


def described(item: Chosen) -> dict[str, Any]:
    """Return how an objective was set up."""
    return {
        "settings": settings_of(item.algorithm),
        "advantage": type(item.advantage).__name__,
        "aggregation": item.aggregation,
        "notes": list(item.notes),
    }


def counts(frozen: Frozen) -> dict[str, float]:
    """Return what was sampled."""
    totals, valid = frozen.rewards.totals, frozen.rewards.valid
    groups = frozen.rollouts.group_ids[valid]
    kinds = [totals[valid][groups == g] for g in set(groups.tolist())]
    return {
        "prompts": len(frozen.rollouts.prompts),
        "group_size": frozen.rollouts.group_size,
        "answers": len(frozen.rollouts),
        "tokens": int(frozen.mask.sum()),
        "reward_mean": float(totals[valid].double().mean()) if kinds else math.nan,
        "groups_with_signal": sum(bool(kind.min() < kind.max()) for kind in kinds),
    }


def inspect_checkpoint(ckpt_path: str, request: Request, output_dir: Path) -> None:
    """Look at objectives on answers of a checkpoint; print, write and draw what was found.

    Args:
        ckpt_path: Checkpoint of ``rlzoo fit``.
        request: What is to be looked at.
        output_dir: Folder of the results.

    Raises:
        UserError: If something about it is refused.
    """
    named(request.algorithms)  # refused before weights load
    found = {"checkpoint": ckpt_path} | examine(inspected(read_checkpoint(ckpt_path)), request)
    output_dir.mkdir(parents=True, exist_ok=True)
    # An objective of one's own may have settings of any type.
    write_json(output_dir / "inspect.json", found, default=str)
    plot_inspection(output_dir / "inspect.png", found)
    print(lines_of(found))
    print(f"everything, and a picture: {output_dir}/{{inspect.json, inspect.png}}")
