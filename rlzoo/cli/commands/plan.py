"""The command ``rlzoo plan``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rlzoo.cli.commands.settle import settle
from rlzoo.cli.parser import Parser
from rlzoo.errors import UserError
from rlzoo.plan.hardware import PRESETS, hardware
from rlzoo.plan.words import print_plan


def plan(args: Sequence[str]) -> None:
    """Say what a run needs, before anything is loaded."""
    given, rest = arguments(args)
    device = hardware(
        given.hardware,
        memory_gb=given.memory_gb,
        tflops=given.tflops,
        bandwidth_gb_s=given.bandwidth_gb_s,
        interconnect_gb_s=given.interconnect_gb_s,
    )
    target = Path(given.json) if given.json else None
    print_plan(settle(rest), given.prompt_tokens, device, target)


def arguments(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into the plan's own options and those of ``rlzoo fit``.

    Raises:
        UserError: If a value makes no sense.
    """
    about = "Say what a run needs: parameters, bytes per process, bounds on its speed. No weights "
    about += "are loaded. Takes every option of rlzoo fit, and those below. GB are 10^9 bytes."
    parser = Parser("plan", about)
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
