"""Conversion of users' files to a packed store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.blocks import Block, Blocks, Keys, Remark, Unreadable
from torchmdx.datasets.checks import CLOSEST, broken, in_our_units, nearest
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.label_names import NoLabels
from torchmdx.datasets.plausible import Plausible
from torchmdx.datasets.readers import READERS
from torchmdx.datasets.reading import Reading
from torchmdx.datasets.source_state import source_state
from torchmdx.datasets.store import StoreWriter
from torchmdx.datasets.units import Units
from torchmdx.runtime.wording import counted

LISTED = 20  # broken frames that are listed one by one
BUFFERED = 1 << 16  # atoms that are written at once


@dataclass(frozen=True)
class Broken:
    """Frames of a file, from `first` on, that were not converted."""

    file: str
    first: int
    count: int
    reason: str

    def __str__(self) -> str:
        which = f"frame {self.first}" if self.count == 1 else f"frames {self.first} to {self.first + self.count - 1}"
        return f"{self.file}, {which}: {self.reason}"


@dataclass
class ConvertReport:
    """Result of a conversion. broken: the first broken frames; num_broken: the number of all of them."""

    path: Path
    num_frames: int = 0
    num_atoms: int = 0
    num_broken: int = 0
    broken: list[Broken] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def note(self, found: Broken) -> None:
        """Counts broken frames, and keeps the first ones."""
        self.num_broken += found.count
        if len(self.broken) < LISTED:
            self.broken.append(found)


def convert(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    format: str | None = None,
    energy_unit: str | None = None,
    length_unit: str | None = None,
    force_unit: str | None = None,
    stress_unit: str | None = None,
    dipole_unit: str | None = None,
    keys: Mapping[str, str | None] | None = None,
    broken: str = "refuse",
    unlabelled: bool = False,
    overwrite: bool = False,
    log: Callable[[str], None] = print,
    progress: Callable[[str, int], None] = lambda file, frames: None,
) -> ConvertReport:
    """Writes a store of all frames of the files, or of other stores. The store is created atomically.

    format: one of `readers.FORMATS`; None: detected. Units: None is the format's own, eV and Å except for SPICE; for
    forces, stress and dipole None is derived from those. keys: names in the files, see `blocks.Keys`. broken: "refuse"
    raises ValueError that lists broken frames, "skip" leaves them out and logs them. unlabelled: whether frames and
    files may have no labels. progress: called with a file and
    the number of its frames read so far. Raises ValueError and FileNotFoundError that name the file, and the frame.
    """
    if not files:
        raise ValueError("data must be at least one file, got none")
    reading = Reading(
        format=format,
        energy_unit=energy_unit,
        length_unit=length_unit,
        force_unit=force_unit,
        stress_unit=stress_unit,
        dipole_unit=dipole_unit,
        keys=Keys.of(keys),
        broken=broken,
    )
    formats = reading.formats(files)
    units = [reading.units(name) for name in formats]
    report, plausible = ConvertReport(Path(out)), {unit: Plausible() for unit in units}
    made_from = source_state(files, reading.plain())
    with StoreWriter(out, units=_recorded(units), made_from=made_from, overwrite=overwrite) as writer:
        for file, name, unit in zip(files, formats, units, strict=True):
            before = report.num_broken
            blocks = READERS[name].read(Path(file), reading.keys)
            blocks = _with_or_without_labels(blocks) if unlabelled else blocks
            good = _good(str(file), blocks, unit, plausible[unit], report, progress, unlabelled)
            for frames, numbers in _gathered(good):
                writer.add(frames, str(file), numbers)
            if report.num_broken > before and broken == "refuse":
                _refuse(report, plausible)
            log(f"{file}: {name}, {_read(writer.num_frames - report.num_frames, report.num_broken - before)}")
            report.num_frames, report.num_atoms = writer.num_frames, writer.num_atoms
        if not report.num_frames and not report.num_broken:
            raise ValueError(f"the data must have at least one frame, got none in {', '.join(map(str, files))}")
        if not report.num_frames:
            _refuse(report, plausible, "none can be used")
        _log(report, plausible, log)
    return report


def _log(report: ConvertReport, plausible: Mapping[Units, Plausible], log: Callable[[str], None]) -> None:
    """Logs the frames that are left out, and warnings, which the report gets too."""
    for found in report.broken:
        log(f"skipped {found}")
    if report.num_broken > sum(found.count for found in report.broken):
        log(f"... {counted(report.num_broken, 'frame')} skipped in all")
    report.warnings += [text for unit in plausible for text in plausible[unit].warnings()]
    for text in report.warnings:
        log(f"warning: {text}")


def _recorded(units: list[Units]) -> dict[str, str]:
    """The units to record in the store: one set, or the sets of all files joined."""
    every = [unit.names() for unit in dict.fromkeys(units)]
    names = dict.fromkeys(name for one in every for name in one)
    return {name: ", ".join(dict.fromkeys(one[name] for one in every if name in one)) for name in names}


def _read(frames: int, broken: int) -> str:
    return counted(frames, "frame") + (f", {broken} broken" if broken else "")


def _refuse(
    report: ConvertReport, plausible: Mapping[Units, Plausible], hint: str = "--broken skip leaves such frames out"
) -> None:
    frames = "1 frame is broken" if report.num_broken == 1 else f"{report.num_broken} frames are broken"
    lines = [str(found) for found in report.broken]
    if report.num_broken > sum(found.count for found in report.broken):
        lines.append("...")
    lines += [text for unit in plausible for text in plausible[unit].warnings()]
    raise ValueError("\n  ".join([f"{frames} ({hint}):", *lines]))


def _with_or_without_labels(blocks: Blocks) -> Blocks:
    """The same blocks; a file without labels is not an error."""
    with suppress(NoLabels):
        yield from blocks


def _good(
    file: str,
    blocks: Iterator[Block | Unreadable | Remark],
    units: Units,
    plausible: Plausible,
    report: ConvertReport,
    progress: Callable[[str, int], None],
    unlabelled: bool,
) -> Iterator[tuple[Frames, NDArray[np.int64]]]:
    """The frames that can be used, in our units, with their numbers in the file."""
    done = 0
    for found in blocks:
        if isinstance(found, Remark):
            report.warnings.append(found.text)
            continue
        if isinstance(found, Unreadable):
            report.note(Broken(file, found.first, found.count, found.reason))
            done += found.count
            continue
        frames = in_our_units(found, units)
        wrong = broken(frames, found.claimed, unlabelled)
        numbers = found.first + np.arange(len(frames), dtype=np.int64)
        done += len(frames)
        kept = np.array([k for k in range(len(frames)) if k not in wrong], np.int64)
        taken = frames.take(kept) if wrong else frames
        distance, pair = nearest(taken)
        plausible.add(taken, distance, pair, file)
        for k in np.flatnonzero(distance < CLOSEST):
            wrong[int(kept[k])] = f"two atoms must be at least {CLOSEST} Å apart, got {distance[k]:.3g} Å"
        if (distance < CLOSEST).any():
            kept = kept[distance >= CLOSEST]
            taken = frames.take(kept)
        for index in sorted(wrong):
            report.note(Broken(file, int(numbers[index]), 1, wrong[index]))
        progress(file, done)
        if len(kept):
            yield taken, numbers[kept]


def _gathered(parts: Iterator[tuple[Frames, NDArray[np.int64]]]) -> Iterator[tuple[Frames, NDArray[np.int64]]]:
    """The same frames in fewer, larger batches."""
    waiting: list[tuple[Frames, Any]] = []
    atoms = 0
    for part in parts:
        waiting.append(part)
        atoms += part[0].num_atoms
        if atoms >= BUFFERED or len(waiting) >= 1024:
            yield _joined(waiting)
            waiting, atoms = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[tuple[Frames, Any]]) -> tuple[Frames, NDArray[np.int64]]:
    return Frames.concatenate([frames for frames, _ in parts]), np.concatenate([numbers for _, numbers in parts])
