"""Sphinx extension: docstrings as the project writes them, plain text with `names` and indented code, as reST.

Written for readers of the source, they would be misread: a single `*` or a trailing `_` means something to reST, and
lines such as "cutoff: Å" run together.
"""

import re
from collections.abc import Iterator
from typing import Any

# "dtype: of the network", "stress, energies: give these too", "counts [F]: atoms of each": explains an argument.
NAMES = r"[a-z_0-9]+(?:, [a-z_0-9]+)*(?: \[[^\]]*\])?"
ARGUMENT = re.compile(rf"{NAMES}: .*")
# A later argument on the same line, or what is raised, which is no part of the argument before it.
NEXT = re.compile(rf"(?<=\.) (?={NAMES}: |Raises )")
NEXT_ARGUMENT = re.compile(rf"(?<=\.) (?={NAMES}: )")
CODE = re.compile(r"(`+)(.+?)\1")
SPECIAL = re.compile(r"([*|\\]|(?<=\w)_(?!\w)|(?<!\w)_(?=\w))")


def to_rest(lines: list[str]) -> list[str]:
    """A docstring's lines as reST."""
    return [line for block in _blocks(lines) for line in [*block, ""]]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs, arguments and literal blocks, in order."""
    text: list[str] = []
    literal: list[str] = []
    for line in [*lines, ""]:
        indented = line.startswith("    ")
        if literal and (indented or not line.strip()):
            literal.append(line)
            continue
        if literal:
            yield _literal(literal)
            literal = []
        in_argument = bool(text and ARGUMENT.match(text[0]))
        # A sentence that goes on may well begin a line with "system: ".
        new_argument = ARGUMENT.match(line) and (not text or text[-1].endswith((".", ")", ":")))
        if not line.strip() or (indented and not in_argument) or new_argument:
            yield from _paragraphs(text)
            text = []
        if indented and not in_argument:
            literal = [line]
        elif line.strip():
            text.append(line.strip())
    yield from _paragraphs(text)
    if literal:
        yield _literal(literal)


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """One paragraph, or an item for each argument that it explains."""
    if not lines:
        return
    for part in (NEXT if ARGUMENT.match(lines[0]) else NEXT_ARGUMENT).split(" ".join(lines)):
        names, _, text = part.partition(": ")
        yield [f"- **{names}**: {_text(text)}"] if ARGUMENT.match(part) else [_text(part)]


def _literal(lines: list[str]) -> list[str]:
    while not lines[-1].strip():
        lines.pop()
    code = any("=" in line or "(" in line for line in lines)
    return [f".. code-block:: {'python' if code else 'text'}", "", *lines]


def _text(line: str) -> str:
    """`name` becomes ``name``; what reST would take for markup is escaped."""
    parts = []
    end = 0
    for found in CODE.finditer(line):
        parts += [SPECIAL.sub(r"\\\1", line[end : found.start()]), f"``{found[2]}``"]
        end = found.end()
    parts.append(SPECIAL.sub(r"\\\1", line[end:]))
    return "".join(parts)


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rest(lines)


# What autodoc makes of names: longer than, and unlike, what the source says.
SHORTER = (
    (re.compile(r"TypeAliasForwardRef\('(\w+)'\)"), r"\1"),
    (
        re.compile(r"~?[\w.]*ndarray\[~?[\w.]*tuple\[~?[\w.]*Any, \.\.\.\], ~?[\w.]*dtype\[~?(?:numpy\.)?([\w.]+)\]\]"),
        r"NDArray[~numpy.\1]",
    ),
    (re.compile(r"<function [\w.]*<lambda>>|<factory>|lambda [\w, ]*: \.\.\."), "..."),
)


def _shorten(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    texts = [signature, returned]
    for k, text in enumerate(texts):
        for pattern, by in SHORTER:
            text = text and pattern.sub(by, text)
        texts[k] = text
    return texts[0], texts[1]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True}
