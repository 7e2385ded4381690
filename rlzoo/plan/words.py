"""What a configuration of fit needs, in words and as JSON, before anything is loaded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlzoo.display.json_files import write_json
from rlzoo.display.tables import aligned
from rlzoo.errors import UserError
from rlzoo.plan import speed
from rlzoo.plan.hardware import Hardware
from rlzoo.plan.job import Job, job_of
from rlzoo.plan.memory import parts, peaks

GB = 1e9


def print_plan(
    settings: dict[str, Any], prompt_tokens: int, device: Hardware, target: Path | None = None
) -> None:
    """Print what a run needs.

    Args:
        settings: All settings of the run.
        prompt_tokens: Length of a prompt.
        device: What each process runs on.
        target: File for the plan as JSON.

    Raises:
        UserError: If the run depends on what only a machine can tell, or the file has no folder.
    """
    job = job_of(settings, prompt_tokens)
    for line in [*model_lines(job), "", *memory_lines(job, device), "", *speed_lines(job, device)]:
        print(line)
    if target is not None:
        if not target.parent.is_dir():
            raise UserError(f"--json {target}: there is no folder {target.parent}")
        write_json(target, record(job, device))


def model_lines(job: Job) -> list[str]:
    """Return what is planned, in words."""
    a, s = job.anatomy, job.sharding
    trains = "all train" if a.trainable == a.total else f"{_count(a.trainable)} train"
    lines = [f"model     {a.family}: {a.source}"]
    lines.append(f"          {_count(a.total)} parameters, {trains}")
    if a.experts:
        lines.append(
            f"          {_count(a.active)} active per token ({a.chosen} of {a.experts} experts in "
            f"{a.moe_layers} of {a.layers} layers); experts hold {a.routed / a.total:.1%}"
        )
    if job.critic[0]:
        lines.append(f"          {_count(job.critic[0])} more in a separate critic, all train")
    lines.append(f"run       {s.words}: {s.nodes} x {s.world // s.nodes} processes, one per device")
    rows = job.prompts * job.group_size
    lines.append(
        f"          {job.prompts} prompts x {job.group_size} = {rows} answers of at most "
        f"{job.answer_tokens} tokens, prompts of {job.prompt_tokens}, {job.updates} updates"
    )
    return lines


def memory_lines(job: Job, device: Hardware) -> list[str]:
    """Return the table of bytes, and whether they fit."""
    lines = parts(job)
    total = peaks(lines)
    name, unit = ("GB", GB) if _most(total) >= GB else ("MB", 1e6)
    rows: list[tuple[str, ...]] = [(f"{name} per process", "rollout", "training", "")]
    for part in lines:
        cells = [f"{part.size / unit:.2f}" if there else "" for there in _places(part)]
        rows.append((part.name, *cells, f" {part.how}{' (on the host)' if part.host else ''}"))
    sums = (f"{total[phase] / unit:.2f}" for phase in ("rollout", "training"))
    rows.append(("sum", *sums, ""))
    table = aligned(rows, "lrrl", least=(26, 10, 8))
    if device.memory_gb is not None:
        table.append(_verdict(total, device.memory_gb))
    rows = [("the same run under", f"{name}, most at once", "")]
    for other in job.sharding.alternatives(job.anatomy.experts):
        need = _most(peaks(parts(job.under(other))))
        fits = device.memory_gb is not None and need <= device.memory_gb * GB
        rows.append((f"  {other.words}", f"{need / unit:.2f}", " fits" if fits else ""))
    return [*table, "", *aligned(rows, "lrl", least=(26, 18))]


def speed_lines(job: Job, device: Hardware) -> list[str]:
    """Return the bounds in words, or what is missing for them."""
    found = speed.bounds(job, device)
    if not found:
        wanted = "--hardware, or --tflops, --bandwidth_gb_s and --interconnect_gb_s"
        return [f"speed     give {wanted} for bounds on tokens per second"]
    world = job.sharding.world
    lines = ["speed     at most, by the hardware's figures; a run reaches a part of it"]
    for bound in found:
        seconds = ", ".join(
            f"{name} {getattr(bound, name):.3g} s" for name in ("compute", "memory", "network")
        )
        lines.append(
            f"  {bound.name:9} {bound.rate:10,.0f} tokens/s per device, {bound.rate * world:,.0f} "
            f"in all; bound by {bound.limit} ({seconds})"
        )
    return lines


def record(job: Job, device: Hardware) -> dict[str, Any]:
    """Return the plan for machines."""
    lines = parts(job)
    total = peaks(lines)
    fits = None if device.memory_gb is None else _most(total) <= device.memory_gb * GB
    return {
        "anatomy": {**asdict(job.anatomy), "active": job.anatomy.active},
        "sharding": asdict(job.sharding),
        "precision": asdict(job.precision),
        "hardware": asdict(device),
        "bytes": [asdict(part) for part in lines],
        "peaks": total,
        "fits": fits,
        "bounds": [
            {**asdict(b), "tokens_per_s": b.rate, "limit": b.limit}
            for b in speed.bounds(job, device)
        ],
    }


def _places(part: Any) -> tuple[bool, bool]:
    return part.rollout, part.training


def _most(total: dict[str, float]) -> float:
    return max(total["rollout"], total["training"])


def _verdict(total: dict[str, float], memory_gb: float) -> str:
    most = _most(total) / GB
    if most <= memory_gb:
        return f"fits in {memory_gb:g} GB with {memory_gb - most:.1f} GB to spare"
    return f"does not fit in {memory_gb:g} GB: {most - memory_gb:.1f} GB too much"


def _count(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
