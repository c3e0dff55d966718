"""Sphinx extension: measurements in pages, read from benchmarks/results/ when the pages are built.

    ```{results} step
    rows: [system, atoms]
    columns:
      torchmdx, ms: {by: torchmdx, value: ms}
    ```

is a table, and {result}`step {atoms: 2489, by: torchmdx, value: ms}` a number; recorded.py has the keys. A
selection that finds nothing is a warning, which ends the build of `make docs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import recorded
from docutils import nodes
from docutils.statemachine import StringList
from plan_table import table_of
from sphinx.util.docutils import SphinxDirective, SphinxRole


class MarkdownDirective(SphinxDirective):
    """A directive whose result is Markdown."""

    required_arguments = 1
    classes: tuple[str, ...] = ()

    def markdown(self) -> str:
        raise NotImplementedError("a directive must define markdown()")

    def run(self) -> list[nodes.Node]:
        try:
            text = self.markdown()
        except ValueError as error:
            raise self.error(str(error)) from error
        parent = nodes.container(classes=list(self.classes))
        self.state.nested_parse(StringList(text.splitlines()), self.content_offset, parent)
        return [parent]


class Results(MarkdownDirective):
    """A table of a record."""

    has_content = True
    classes = ("measured",)

    def markdown(self) -> str:
        for path in (recorded.RESULTS / f"{self.arguments[0]}.json", Path(recorded.__file__)):
            self.env.note_dependency(str(path))
        return recorded.table(self.arguments[0], "\n".join(self.content))


class Plans(MarkdownDirective):
    """What runs for a network, for several sizes and machines."""

    def markdown(self) -> str:
        return table_of(self.arguments[0])


class Result(SphinxRole):
    """A number of a record."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            return [nodes.Text(recorded.number(self.text))], []
        except ValueError as error:
            return [], [self.inliner.reporter.error(str(error), line=self.lineno)]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("results", Results)
    app.add_directive("plans", Plans)
    app.add_role("result", Result())
    return {"parallel_read_safe": True}
