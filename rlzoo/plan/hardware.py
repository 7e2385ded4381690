"""Figures of accelerators: what a data sheet promises, or what the user gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rlzoo.errors import UserError, nearest


@dataclass(frozen=True)
class Hardware:
    """One device and its links. GB are 10^9 bytes; links count one direction of one device.

    Attributes:
        name: What it is called in the plan.
        memory_gb: Memory, None where it is not known.
        tflops: Dense bf16 matrix products, 10^12 operations per second.
        bandwidth_gb_s: From and to its memory.
        inside_gb_s: To other devices of its machine.
        between_gb_s: To devices of other machines.
    """

    name: str
    memory_gb: float | None = None
    tflops: float | None = None
    bandwidth_gb_s: float | None = None
    inside_gb_s: float | None = None
    between_gb_s: float | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if isinstance(value, float) and not value > 0:
                raise UserError(f"--{key} must be > 0, got {value:g}")

    def link(self, nodes: int) -> float | None:
        """Return the slowest link that a collective over all devices crosses, in GB/s."""
        return self.inside_gb_s if nodes == 1 else self.between_gb_s


PRESETS = {
    # NVIDIA A100 80GB SXM data sheet; NVLink 600 GB/s in both directions; a DGX A100 has one
    # 200 Gb/s adapter per device.
    "a100": Hardware("a100", 80.0, 312.0, 2039.0, 300.0, 25.0),
    # NVIDIA H100 SXM data sheet (half of the figure with sparsity); NVLink 900 GB/s in both
    # directions; a DGX H100 has one 400 Gb/s adapter per device.
    "h100": Hardware("h100", 80.0, 989.0, 3350.0, 450.0, 50.0),
    # NVIDIA H200 SXM data sheet; links as those of a DGX H100.
    "h200": Hardware("h200", 141.0, 989.0, 4800.0, 450.0, 50.0),
}


def hardware(
    name: str | None,
    *,
    memory_gb: float | None,
    tflops: float | None,
    bandwidth_gb_s: float | None,
    interconnect_gb_s: float | None,
) -> Hardware:
    """Return a preset with what the user gives in place of it.

    ``name`` is a preset or None, ``interconnect_gb_s`` the slowest link between the run's devices;
    the other figures are those of `Hardware`.

    Returns:
        The figures; None where neither has one.

    Raises:
        UserError: If there is no such preset, or a figure is not above 0.
    """
    if name is not None and name not in PRESETS:
        raise UserError(
            f"--hardware {name}: {nearest(name, list(PRESETS))}; or give --memory_gb, --tflops, "
            "--bandwidth_gb_s and --interconnect_gb_s"
        )
    given: dict[str, Any] = {
        "memory_gb": memory_gb,
        "tflops": tflops,
        "bandwidth_gb_s": bandwidth_gb_s,
        "inside_gb_s": interconnect_gb_s,
        "between_gb_s": interconnect_gb_s,
    }
    base = PRESETS[name] if name is not None else Hardware("given")
    return replace(base, **{key: value for key, value in given.items() if value is not None})
