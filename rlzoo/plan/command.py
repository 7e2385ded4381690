"""The command ``rlzoo plan``: what a configuration of fit needs, before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from rlzoo.display.json_files import write_json
from rlzoo.errors import UserError
from rlzoo.plan import speed
from rlzoo.plan.hardware import PRESETS, Hardware, hardware
from rlzoo.plan.job import Job, job_of
from rlzoo.plan.memory import parts, peaks

Settle = Callable[[list[str]], dict[str, Any]]
GB = 1e9


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see rlzoo plan --help")


def arguments(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into the plan's own options and those of ``rlzoo fit``.

    Raises:
        UserError: If a value makes no sense.
    """
    about = "Say what a run needs: parameters, bytes per process, bounds on its speed. No weights "
    about += "are loaded. Takes every option of rlzoo fit, and those below. GB are 10^9 bytes."
    parser = _Parser(prog="rlzoo plan", description=about, allow_abbrev=False)
    add = parser.add_argument
    add("--config", action="append", default=[], help="as for rlzoo fit; may be given repeatedly")
    add("--hardware", help=f"data sheet of {', '.join(PRESETS)}; the options below replace parts")
    add("--memory_gb", type=float, help="memory of a device: does the run fit?")
    add("--tflops", type=float, help="bf16 matrix products of a device, 10^12 operations per s")
    add("--bandwidth_gb_s", type=float, help="a device's reading of its own memory")
    add("--interconnect_gb_s", type=float, help="slowest link of a device, one direction")
    add("--prompt_tokens", type=int, default=512, help="length of a prompt; 512 by default")
    add("--json", metavar="FILE", help="write the plan there too")
    given, rest = parser.parse_known_args(list(args))
    if not given.config and not rest:
        raise UserError("give --config FILE, as for rlzoo fit; see rlzoo plan --help")
    return given, [*(word for file in given.config for word in ("--config", file)), *rest]


def plan(args: Sequence[str], settle: Settle) -> None:
    """Print what a run needs.

    Args:
        args: The command line after ``rlzoo plan``.
        settle: Turns arguments of ``rlzoo fit`` into all settings, or refuses them.

    Raises:
        UserError: If the run would be refused, or depends on what only a machine can tell.
    """
    given, rest = arguments(args)
    device = hardware(
        given.hardware,
        memory_gb=given.memory_gb,
        tflops=given.tflops,
        bandwidth_gb_s=given.bandwidth_gb_s,
        interconnect_gb_s=given.interconnect_gb_s,
    )
    job = job_of(settle(rest), given.prompt_tokens)
    for line in [*model_lines(job), "", *memory_lines(job, device), "", *speed_lines(job, device)]:
        print(line)
    if given.json:
        target = Path(given.json)
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
    table = [f"{name + ' per process':28}{'rollout':>10}{'training':>10}"]
    for part in lines:
        cells = [f"{part.size / unit:10.2f}" if there else " " * 10 for there in _places(part)]
        where = " (on the host)" if part.host else ""
        table.append(f"{part.name:28}{''.join(cells)}   {part.how}{where}")
    table.append(f"{'sum':28}{total['rollout'] / unit:10.2f}{total['training'] / unit:10.2f}")
    if device.memory_gb is not None:
        table.append(_verdict(total, device.memory_gb))
    table += ["", f"{'the same run under':28}{name + ', most at once':>18}"]
    for other in job.sharding.alternatives(job.anatomy.experts):
        need = _most(peaks(parts(job.under(other))))
        fits = device.memory_gb is not None and need <= device.memory_gb * GB
        table.append(f"  {other.words:34}{need / unit:10.2f}{'   fits' * fits}")
    return table


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
