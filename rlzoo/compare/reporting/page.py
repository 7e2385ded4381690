"""The report as a page of HTML that needs no other file, and as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlzoo.compare.reporting.figures import Picture


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines
        )


@dataclass(frozen=True)
class Section:
    """A part of the report, in the order text, table, pictures.

    Attributes:
        key: Id in the page.
        title: Heading.
        text: Paragraphs.
        table: Figures.
        pictures: Plots, shown last.
        points: List items below the paragraphs.
        urgent: Whether the text is a warning.
    """

    key: str
    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[Picture] = ()
    points: Sequence[str] = ()
    urgent: bool = False

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to show."""
        return not (self.text or self.pictures or self.points or (self.table and self.table.rows))


def page(title: str, subtitle: str, headline: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole report as one HTML document without scripts or links to other files.

    The template is ``page.html.jinja``. On narrow screens each row of a table becomes a card,
    labeled by the head.

    Args:
        title: Headline.
        subtitle: A line below it.
        headline: Sentences of the summary.
        sections: What follows; empty ones are left out.

    Returns:
        HTML.
    """
    environment = Environment(
        loader=PackageLoader("rlzoo.compare.reporting", package_path=""),
        autoescape=True,  # names and errors of runs are the user's text
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = _base64
    template = environment.get_template("page.html.jinja")
    return template.render(title=title, subtitle=subtitle, headline=headline, sections=sections)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def markdown(title: str, headline: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the report as Markdown; pictures are those in the same folder."""
    lines = [f"# {title}", "", *(f"- {line}" for line in headline)]
    for section in sections:
        if not section.empty:
            lines += ["", f"## {section.title}", *(f"\n{text}" for text in section.text)]
            if section.points:
                lines += ["", *(f"- {point}" for point in section.points)]
            if section.table and section.table.rows:
                lines += ["", section.table.markdown()]
            for picture in section.pictures:
                lines += ["", f"![{picture.title}]({picture.path.name})", "", picture.caption]
    return "\n".join(lines) + "\n"
