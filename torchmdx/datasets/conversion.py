"""Conversion of users' files to a packed store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.ase_files import XYZ
from torchmdx.datasets.blocks import Blocks, Keys, Remark, Stated, Unreadable
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.label_names import NoLabels
from torchmdx.datasets.parallel_xyz import read_parallel
from torchmdx.datasets.plausible import Plausible
from torchmdx.datasets.readers import READERS
from torchmdx.datasets.reading import ReadingOptions
from torchmdx.datasets.source_state import source_state
from torchmdx.datasets.stated_units import contradiction
from torchmdx.datasets.store import StoreWriter
from torchmdx.datasets.units import Units
from torchmdx.datasets.usable import joined, usable
from torchmdx.runtime.wording import counted

LISTED = 20  # broken frames that are listed one by one
BUFFERED = 1 << 16  # atoms that are written at once
LARGE = 1 << 22  # bytes of a file that is worth several processes


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
    processes: int = 1,
    log: Callable[[str], None] = print,
    progress: Callable[[str, int], None] = lambda file, frames: None,
) -> ConvertReport:
    """Writes a store of all frames of the files, or of other stores. The store is created atomically.

    Raises ValueError and FileNotFoundError that name the file, and the frame.

    Args:
        format: One of `readers.FORMATS`; None: detected. Units: None is the format's own, eV and Å except for SPICE;
            for forces, stress and dipole None is derived from those.
        keys: Names in the files, see `blocks.Keys`.
        broken: "refuse" raises ValueError that lists broken frames, "skip" leaves them out and logs them.
        unlabelled: Whether frames and files may have no labels.
        processes: That read a large extended XYZ file; with more than one, a script that calls this needs `if __name__
            == "__main__"`.
        progress: Called with a file and the number of its frames read so far.
    """
    if not files:
        raise ValueError("data must be at least one file, got none")
    reading = ReadingOptions(
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
    sorted_out = _Files(plausible, report, progress, unlabelled)
    made_from = source_state(files, reading.plain())
    with StoreWriter(out, units=_recorded(units), made_from=made_from, overwrite=overwrite) as writer:
        for file, name, unit in zip(files, formats, units, strict=True):
            before = report.num_broken
            blocks = _blocks(Path(file), name, reading.keys, processes, unlabelled)
            for frames, numbers in _gathered(sorted_out.good(str(file), blocks, unit)):
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


def _blocks(file: Path, format: str, keys: Keys, processes: int, unlabelled: bool) -> Blocks:
    """The blocks of a file, a large extended XYZ file by several processes."""
    if processes > 1 and format == "ase" and file.suffix.lower() in XYZ and file.stat().st_size > LARGE:
        blocks = read_parallel(file, keys, processes)
    else:
        blocks = READERS[format].read(file, keys)
    return _with_or_without_labels(blocks) if unlabelled else blocks


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


@dataclass
class _Files:
    """What is done with the blocks of all files."""

    plausible: Mapping[Units, Plausible]
    report: ConvertReport
    progress: Callable[[str, int], None]
    unlabelled: bool

    def good(self, file: str, blocks: Blocks, units: Units) -> Iterator[tuple[Frames, NDArray[np.int64]]]:
        """The frames of a file that can be used, in our units, with their numbers in the file."""
        done = 0
        absent: Counter[str] = Counter()
        for found in joined(blocks):
            if isinstance(found, Remark):
                self.report.warnings.append(found.text)
                continue
            if isinstance(found, Stated):
                _require_stated(file, found, units)
                continue
            if isinstance(found, Unreadable):
                self.report.note(Broken(file, found.first, found.count, found.reason))
                done += found.count
                continue
            checked = usable(found, units, self.unlabelled)
            done += checked.count
            absent.update(checked.missing)
            self.plausible[units].add(checked.whole, checked.distance, checked.pair, file)
            for number, reason in checked.broken.items():
                self.report.note(Broken(file, number, 1, reason))
            self.progress(file, done)
            if len(checked.frames):
                yield checked.frames, checked.numbers
        for name, count in sorted(absent.items()):
            if count:
                frames = counted(count, "frame")
                self.report.warnings.append(f"{name} is NaN in {frames} of {file}, where it is read as missing")


def _require_stated(file: str, stated: Stated, units: Units) -> None:
    """Raises ValueError if the file states other units than those that it is read in."""
    found = contradiction(stated.units, units)
    if found is not None:
        raise ValueError(f"{file!r} {found}")


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
