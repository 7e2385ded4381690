"""Turns tables, sentences and pictures into one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rlzoo.compare.reporting.figures import Picture

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a;
  --line: #d0d7de; --box: #f4f6f8; --mark: #0072b2; --warn: #a84300; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e8ebee; --soft: #a9b3bd;
  --line: #3a434d; --box: #1e242b; --mark: #6cbcf0; --warn: #ffab70; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 1rem clamp(0.75rem, 2.5vw, 2rem) 3rem;
  background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
p, li { max-width: 75ch; }
p { margin: 0.5rem 0; }
.soft, figcaption { color: var(--soft); font-size: 0.9rem; }
.box { background: var(--box); border-left: 4px solid var(--mark); padding: 0.4rem 1rem;
  margin: 1rem 0; }
.box ul { padding-left: 1.1rem; }
.box li { margin: 0.35rem 0; max-width: 95ch; }
.bad { color: var(--warn); font-weight: 600; }
.figures { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 640px; }
figure img { display: block; width: 100%; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 4px; padding: 4px; }
figcaption { margin-top: 0.3rem; }
table { border-collapse: collapse; width: 100%; margin: 0.8rem 0; font-size: 0.92rem;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.7rem 0.35rem 0;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; line-height: 1.25; vertical-align: bottom; }
tbody th { font-weight: 600; }
@media (max-width: 760px) {
  body { font-size: 15px; }
  table, tbody, tr, th, td { display: block; }
  thead { position: absolute; left: -9999px; }
  tr { border: 1px solid var(--line); border-radius: 4px; margin: 0.6rem 0;
    padding: 0.3rem 0.7rem; }
  th, td { border: 0; padding: 0.12rem 0; }
  td { display: grid; grid-template-columns: 45% 1fr; gap: 0.6rem; overflow-wrap: anywhere; }
  td[data-label=""] { display: block; }
  td::before { content: attr(data-label); color: var(--soft); }
}
""".strip()


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        """Return the table; on narrow screens each row becomes a card, labelled by the head."""
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.head)
        rows = []
        for name, *cells in self.rows:
            row = f'<th scope="row">{escape(name)}</th>'
            for label, cell in zip(self.head[1:], cells, strict=True):
                row += f'<td data-label="{escape(label)}">{escape(cell)}</td>'
            rows.append(f"<tr>{row}</tr>")
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table>"
        )

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
        pictures: Figures that are drawn.
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

    Args:
        title: Headline.
        subtitle: A line below it.
        headline: Sentences of the summary.
        sections: What follows; empty ones are left out.

    Returns:
        HTML.
    """
    body = "\n".join(_section(section) for section in sections if not section.empty)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{STYLE}
</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="soft">{escape(subtitle)}</p>
</header>
<main>
<section class="box" id="summary" aria-label="Summary">
{_list(headline)}
</section>
{body}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    style = ' class="bad"' if section.urgent else ""
    parts = [f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p{style}>{escape(text)}</p>" for text in section.text]
    if section.points:
        parts.append(_list(section.points))
    if section.table and section.table.rows:
        parts.append(section.table.html())
    if section.pictures:
        figures = "\n".join(_figure(picture) for picture in section.pictures)
        parts.append(f'<div class="figures">\n{figures}\n</div>')
    content = "\n".join(parts)
    return f'<section id="{escape(section.key)}">\n{content}\n</section>'


def _list(items: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(Path(picture.path).read_bytes()).decode("ascii")
    return (
        f'<figure id="{escape(picture.path.stem)}">'
        f'<img alt="{escape(f"{picture.title}. {picture.caption}")}" '
        f'src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


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
