"""The command ``rlzoo algorithms``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from rlzoo.algorithms import Algorithm, discover
from rlzoo.cli.parser import Parser
from rlzoo.display.tables import aligned
from rlzoo.errors import UserError, nearest
from rlzoo.objective.gradient_weight import clip_effect, ratio_unit, sources


def algorithms(args: Sequence[str]) -> None:
    """List the objectives, or explain one."""
    parser = Parser("algorithms", "List the objectives, or explain one.")
    parser.add_argument("name", nargs="?", help="objective to explain")
    given = parser.parse_args(args)
    zoo = discover()
    if given.name is None:
        print_zoo(zoo)
        return
    if given.name not in zoo:
        raise UserError(f"no objective '{given.name}'; {nearest(given.name, list(zoo))}")
    cls = zoo[given.name]
    print(f"{given.name}: {inspect.getdoc(cls)}\n")
    print(f"aggregation {cls.aggregation}, advantage {cls.advantage}; {inspect.getsourcefile(cls)}")


def print_zoo(zoo: Mapping[str, type[Algorithm]]) -> None:
    """Print a table of objectives; ratio and clip are found by trying, not by declaration."""
    rows = [("name", "ratio per", "clip acts on", "aggregation", "advantage", "arXiv", "defaults")]
    for name, cls in zoo.items():
        parameters = inspect.signature(cls).parameters.values()
        defaults = ", ".join(f"{p.name}={p.default}" for p in parameters)
        unit, effect = ratio_unit(cls()), clip_effect(cls())
        rows.append((name, unit, effect, cls.aggregation, cls.advantage, sources(cls), defaults))
    print("\n".join(aligned(rows, "l")))
