"""Sphinx extension: shorter signatures."""

import re
from typing import Any

# What autodoc makes of names: longer than, and unlike, what the source says.
SHORTER = (
    (re.compile(r"TypeAliasForwardRef\('(\w+)'\)"), r"\1"),
    (
        re.compile(r"~?[\w.]*ndarray\[~?[\w.]*tuple\[~?[\w.]*Any, \.\.\.\], ~?[\w.]*dtype\[~?(?:numpy\.)?([\w.]+)\]\]"),
        r"NDArray[~numpy.\1]",
    ),
    (re.compile(r"<function [\w.]*<lambda>>|<factory>|lambda [\w, ]*: \.\.\."), "..."),
)


def shorten(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Applies SHORTER to a signature."""
    texts = [signature, returned]
    for k, text in enumerate(texts):
        for pattern, by in SHORTER:
            text = text and pattern.sub(by, text)
        texts[k] = text
    return texts[0], texts[1]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
