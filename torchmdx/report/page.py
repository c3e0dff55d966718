"""The report as one HTML page: pictures inside, nothing from elsewhere, readable on a phone and on paper."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from torchmdx.report.tables import Table

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: #fff; color: #222;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.3rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.2rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.3rem; }
p { margin: 0.3rem 0 0.8rem; max-width: 48rem; }
.faint { color: #666; }
.hints { background: #fff6e0; border-left: 4px solid #e69f00; padding: 0.5rem 1rem; margin: 1rem 0; }
.hints p { margin: 0.3rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; margin-bottom: 0.8rem; }
th, td { padding: 0.2rem 0.8rem 0.2rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th { font-weight: 600; border-bottom: 1px solid #bbb; vertical-align: bottom; }
.word { text-align: left; }
td:last-child:not(:first-child) { padding-right: 0; }
tbody th { padding-top: 0.7rem; border-bottom: none; white-space: normal; }
.settings td { white-space: normal; overflow-wrap: anywhere; vertical-align: top; }
.settings td:first-child { white-space: nowrap; color: #555; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
figure { margin: 0; flex: 0 1 auto; max-width: 100%; }
img { max-width: 100%; height: auto; display: block; }
@media (max-width: 40rem) { body { padding: 0.7rem; font-size: 15px; } td, th { padding-right: 0.6rem; } }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, tr, .hints { break-inside: avoid; }
  h2, h3, p { break-after: avoid; }
  .scroll { overflow: visible; }
  .pictures:has(figure:nth-child(2)) figure { max-width: 48%; }
  .pictures:has(figure:nth-child(3)) figure.small { max-width: 31%; }
  th { white-space: normal; }
  td:last-child { white-space: normal; overflow-wrap: anywhere; }
}
"""
# No script runs and nothing is fetched, whatever a file name or a setting contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Picture:
    """A PNG file and what it shows, for those who do not see it. width: in CSS pixels."""

    path: Path
    text: str
    width: int


@dataclass
class Section:
    """A heading and what stands under it, in order: texts, pictures side by side, tables by their titles."""

    title: str
    texts: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)


def page(title: str, subtitle: str, hints: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole document. Every text is escaped here; nothing given to this function is HTML."""
    body = [f"<h1>{escape(title)}</h1>", f'<p class="faint">{escape(subtitle)}</p>']
    if hints:
        body.append('<div class="hints">' + "".join(f"<p>{escape(hint)}</p>" for hint in hints) + "</div>")
    body += [_section(section) for section in sections]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.texts]
    if section.pictures:
        parts.append('<div class="pictures">' + "".join(_figure(picture) for picture in section.pictures) + "</div>")
    for title, table in section.tables.items():
        parts += [f"<h3>{escape(title)}</h3>"] * bool(title) + [_table(table)]
    return "\n".join(parts)


def _figure(picture: Picture) -> str:
    small = ' class="small"' if picture.width < 400 else ""
    content = base64.b64encode(picture.path.read_bytes()).decode()
    return (
        f'<figure{small}><img src="data:image/png;base64,{content}" alt="{escape(picture.text)}" '
        f'title="{escape(picture.path.name)}" width="{picture.width}"></figure>'
    )


def _table(table: Table) -> str:
    def cells(row: Sequence[str], kind: str) -> str:
        if len(row) == 1:
            return f'<th class="word" colspan="{len(table.head)}">{escape(row[0])}</th>'
        style = [' class="word"' if place in table.words else "" for place in range(len(row))]
        return "".join(f"<{kind}{how}>{escape(cell)}</{kind}>" for how, cell in zip(style, row, strict=True))

    head = f"<thead><tr>{cells(table.head, 'th')}</tr></thead>" if table.head else ""
    rows = "".join(f"<tr>{cells(row, 'td')}</tr>\n" for row in table.rows)
    style = "" if table.head else ' class="settings"'
    return f'<div class="scroll"><table{style}>{head}<tbody>{rows}</tbody></table></div>'
