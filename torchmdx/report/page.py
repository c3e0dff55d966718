"""The report as one HTML page: pictures inside, nothing from elsewhere, readable on a phone and on paper."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchmdx.report.tables import Table
from torchmdx.runtime.optional_package import require_package

TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Picture:
    """A PNG file, and a description for those who cannot see it. width: in CSS pixels."""

    path: Path
    text: str
    width: int

    def base64(self) -> str:
        return base64.b64encode(self.path.read_bytes()).decode()


@dataclass
class PageSection:
    """A heading and its content, in this order: texts, pictures side by side, tables by title."""

    title: str
    texts: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)


def page(
    title: str,
    subtitle: str,
    hints: Sequence[str],
    sections: Sequence[PageSection],
    verdicts: Sequence[str] = (),
    interactive: str = "",
) -> str:
    """The whole document; verdicts and hints are sentences above the sections.

    The template escapes every text; nothing given to this function is HTML. interactive: name of the interactive page
    next to it, to which it links.

    Raises:
        ImportError: Without Jinja2, which torch installs too.
    """
    require_package("jinja2", "reports need", "train", "Jinja2")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title, subtitle=subtitle, hints=hints, sections=sections, verdicts=verdicts, interactive=interactive
    )
