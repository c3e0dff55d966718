"""Fenced blocks of the documents, and the comments that say how a test is to treat them.

<!-- not run: needs a GPU -->        the next block is checked as far as that goes, but not run
<!-- run with: train --epochs 2 -->  commands get more arguments in the test; several: a; b
<!-- file: config.yaml -->           it is the content of a file, which is there before the page begins
<!-- raises: charge must be -->      its last statement raises an error with this text
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("not run", "run with", "file", "raises")
FENCE = re.compile(r"^(`{3,})(.*)$")
COMMENT = re.compile(r"^<!-- ([a-z ]+): (.*?) -->$")
# What is shown and not run; what Sphinx alone understands.
SHOWN = ("text",)
COMMANDS = ("bash",)
LANGUAGES = (*SHOWN, *COMMANDS, "python", "yaml")


@dataclass(frozen=True)
class Block:
    """A fenced block: the page, the line of its first line of text, counted from 1, and how to treat it."""

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def not_run(self) -> str | None:
        return self.marks.get("not run")


def pages() -> list[str]:
    """Names of the documents from the root of the repository."""
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """Every block of a page, Sphinx's directives aside. Raises ValueError for a mark that is none."""
    lines = ((ROOT / page).read_text() if text is None else text).splitlines()
    blocks: list[Block] = []
    marks: dict[str, str] = {}
    k = 0
    while k < len(lines):
        comment, fence = COMMENT.match(lines[k]), FENCE.match(lines[k])
        if comment:
            if comment[1] not in KINDS:
                raise ValueError(f"{page}:{k + 1}: a mark is one of {', '.join(KINDS)}, got {comment[1]!r}")
            marks[comment[1]] = comment[2]
        elif fence:
            end = next(n for n in range(k + 1, len(lines)) if lines[n].strip() == fence[1])
            if not fence[2].startswith("{"):
                blocks.append(Block(page, k + 2, fence[2], "\n".join(lines[k + 1 : end]) + "\n", marks))
            marks = {}
            k = end
        elif lines[k].strip() and marks:
            raise ValueError(f"{page}:{k + 1}: the mark before this line belongs to no block")
        k += 1
    return blocks


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks_of(page)]


def prose(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^(`{3,}).*?^\1$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def summary() -> list[str]:
    """How many blocks run, and which do not, and why."""
    blocks = [block for block in all_blocks() if block.language not in SHOWN]
    left_out = [block for block in blocks if block.not_run]
    first = f"{len(blocks) - len(left_out)} blocks of the documents are run or read, {len(left_out)} are not run:"
    return [first, *(f"{block.place}: {block.not_run}" for block in left_out)]
