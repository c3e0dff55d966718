"""What checks of data find: a table with frame numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.store import Store
from torchmdx.runtime.wording import counted

LISTED = 12  # frames of a finding
LINES = 4  # files of a finding


@dataclass(frozen=True)
class Finding:
    """Frames of a store that something is wrong with; no frames: all of it.

    Attributes:
        check: What was checked, in two words.
        text: One sentence.
        extreme: A training with these data cannot be right.
    """

    check: str
    text: str
    frames: tuple[int, ...] = ()
    extreme: bool = False


def found(check: str, text: str, frames: NDArray[np.int64], *, extreme: bool = False) -> list[Finding]:
    """A finding, unless there are no frames."""
    return [Finding(check, text, tuple(frames.tolist()), extreme)] if len(frames) else []


def table(findings: Sequence[Finding], store: Store) -> list[str]:
    """Lines with check, number of frames, reason, and below it files with numbers of frames; extreme findings first."""
    ordered = sorted(findings, key=lambda one: not one.extreme)
    width = max((len(one.check) for one in ordered), default=0)
    lines = []
    for one in ordered:
        count = counted(len(one.frames), "frame") if one.frames else "all frames"
        mark = "extreme" if one.extreme else "warning"
        lines.append(f"{mark}  {one.check:<{width}}  {count:>12}  {one.text}")
        lines += [f"{'':{width + 25}}{where}" for where in places(one, store)]
    return lines


def places(one: Finding, store: Store) -> list[str]:
    """The first frames of a finding, by file."""
    of_file: dict[str, list[int]] = {}
    for index in one.frames[:LISTED]:
        file, frame = store.origin(index)
        of_file.setdefault(file, []).append(frame)
    lines = [
        f"{file}, frame{'s' * (len(frames) > 1)} {', '.join(map(str, frames))}" for file, frames in of_file.items()
    ][:LINES]
    if len(one.frames) > LISTED or len(of_file) > LINES:
        lines.append("...")
    return lines
