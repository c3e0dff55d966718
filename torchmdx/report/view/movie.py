"""`Movie`, what a page shows: atoms in frames, curves next to them, and torsions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TIME = "time / ps"  # the axis of frames at known times


@dataclass(frozen=True, eq=False)
class Kind:
    """The atoms of one or more frames: numbers [N], bonds [B,2] that may be drawn, labels of atoms or None.

    Attributes:
        crossings: [C,5] bonds across the faces of what is drawn: two atoms, and in which image of the cell the second
            is bonded to the first.
    """

    numbers: Integers
    pairs: Integers
    labels: list[str] | None
    crossings: Integers = field(default_factory=lambda: np.zeros((0, 5), dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Line:
    """A curve: x [n] on the axis of all panels, y [n]."""

    name: str
    x: Floats
    y: Floats


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves with a common vertical axis. level: a dashed horizontal line, such as the thermostat's temperature."""

    title: str
    lines: list[Line]
    level: float | None = None
    logarithmic: bool = False


@dataclass(frozen=True, eq=False)
class Observable:
    """An average over all frames: curves on an axis of their own."""

    title: str
    axis: str
    lines: list[Line]


@dataclass(frozen=True, eq=False)
class Torsions:
    """φ and ψ [F,R] in degrees of the residues of a peptide, by name."""

    names: list[str]
    phi: Floats
    psi: Floats


@dataclass(eq=False)
class Movie:
    """Frames for a page.

    Attributes:
        positions: [N,3] Å for each frame, relative to the centre of the cell or of the atoms.
        cells: [3,3] Å for each frame, None without one.
        kind_of: The kind of each frame.
        x: Its place on the panels' axis `axis`.
        captions: A line about each frame.
        notes: Sentences on what is shown.
        repeats: How often the cell is drawn.
    """

    title: str
    kinds: list[Kind]
    kind_of: list[int]
    positions: list[Floats]
    cells: list[Floats | None]
    x: Floats
    axis: str
    captions: list[str]
    panels: list[Panel] = field(default_factory=list)
    torsions: Torsions | None = None
    notes: list[str] = field(default_factory=list)
    repeats: tuple[int, int, int] = (1, 1, 1)
    observables: list[Observable] = field(default_factory=list)

    @property
    def num_frames(self) -> int:
        return len(self.positions)

    @property
    def num_atoms(self) -> int:
        """The largest number of atoms drawn in a frame."""
        return max(len(positions) for positions in self.positions)


@dataclass(eq=False)
class MovieFrames:
    """Frames as a file holds them, of which a movie shows some.

    Attributes:
        numbers, positions, cells: Of each frame; a cell is None in a frame without three lattice vectors.
        pbc: [3] of each frame.
        indices: Of the frames in the file, which holds num_frames.
        labels: Of the atoms, None: element and index.
        x, captions, panels: As in `Movie`.
        velocities: [N,3] of each frame, in any unit; None without.
    """

    title: str
    numbers: list[Integers]
    positions: list[Floats]
    cells: list[Floats | None]
    pbc: list[NDArray[np.bool_]]
    indices: Integers
    num_frames: int
    x: Floats
    axis: str
    captions: list[str]
    labels: list[str] | None = None
    panels: list[Panel] = field(default_factory=list)
    velocities: list[Floats] | None = None

    @property
    def timed(self) -> bool:
        """Whether x is a time in ps."""
        return self.axis == TIME

    @property
    def uniform(self) -> bool:
        """Whether all frames have the same atoms and the same periodic directions."""
        same = all(np.array_equal(self.numbers[0], other) for other in self.numbers)
        cells = {cell is None for cell in self.cells}
        return same and len(cells) == 1 and all(np.array_equal(self.pbc[0], other) for other in self.pbc)

    def take(self, kept: Any) -> MovieFrames:
        """The frames at positions `kept` of the lists."""
        kept = np.arange(len(self.positions))[kept]

        def chosen(values: list[Any]) -> list[Any]:
            return [values[place] for place in kept]

        return MovieFrames(
            self.title, chosen(self.numbers), chosen(self.positions), chosen(self.cells), chosen(self.pbc),
            self.indices[kept], self.num_frames, self.x[kept], self.axis, chosen(self.captions), self.labels,
            self.panels, None if self.velocities is None else chosen(self.velocities),
        )  # fmt: skip
