"""Tables as text, for a terminal and for a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNWRAPPED = 10_000
"""Columns of a console that wraps nothing."""

JUSTIFY: dict[str, Literal["left", "right"]] = {"l": "left", "r": "right"}


def aligned(
    rows: Sequence[Sequence[str]], sides: str = "lr", least: Sequence[int] = ()
) -> list[str]:
    """Return rows as lines of equal columns, two spaces apart, never wrapped.

    Args:
        rows: Cells of each row; the first row may be the header.
        sides: ``l`` or ``r`` for each column; the last letter stands for all that follow.
        least: Least width of the first columns.

    Returns:
        A line for each row, without spaces at its end.
    """
    table = Table.grid(padding=(0, 2))
    for i in range(len(rows[0])):
        side = JUSTIFY[sides[min(i, len(sides) - 1)]]
        table.add_column(justify=side, no_wrap=True, min_width=[*least, None][min(i, len(least))])
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=UNWRAPPED, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with lines around it.

    On a terminal, long cells are folded to its width; elsewhere, nothing is wrapped.

    Args:
        title: Line above the table.
        header: Names of the columns.
        rows: Cells of each row, shown as they are.
    """
    table = Table(title=Text(title), title_justify="left")
    for name in header:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else UNWRAPPED).print(table)
