"""The interactive page of a report: parity plots that name the frame under the pointer and show its structure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.store import Store
from torchmdx.report.kept_frames import KeptFrame, KeptFrames
from torchmdx.report.scales import Scales
from torchmdx.report.style import colours
from torchmdx.report.view.arrange import movie_of
from torchmdx.report.view.movie import MovieFrames
from torchmdx.report.view.page import encoded, movie_data, require_plotly, rounded, write_page

Floats = NDArray[np.float64]

LEAST_VOLUME = 1e-6  # Å³
MOST_COMPONENTS, MOST_EXTREME = 6000, 200  # of the forces of a set: a sample, and the largest errors
MOST_FRAMES, MOST_ATOMS = 950, 90_000  # of all sets together, below the limits of a page


def write_interactive(
    path: Path,
    kept: Mapping[str, KeptFrames],
    stores: Mapping[str, Store],
    units: Scales,
    *,
    title: str,
) -> bool:
    """Writes the page of sets of frames; without plotly prints one line and returns False.

    Raises:
        OSError: If the file cannot be written.
    """
    sets = {name: frames for name, found in kept.items() if (frames := found.frames())}
    try:
        require_plotly()
    except ImportError as error:
        print(f"no interactive page: {error}", file=sys.stderr)
        return False
    if not sets:
        return False
    sets = {name: _fewer(frames, len(sets)) for name, frames in sets.items()}
    references = next(iter(kept.values())).references
    data = page_data(sets, stores, references, units, title)
    shown, seen = sum(map(len, sets.values())), sum(kept[name].num_seen for name in sets)
    data["notes"] = []
    if shown < seen:
        data["notes"].append(f"{shown:,} of {seen:,} frames are shown: a random sample, and the largest errors.")
    write_page(path, title, data, "parity.js")
    return True


def page_data(
    sets: Mapping[str, list[KeptFrame]], stores: Mapping[str, Store], references: Floats, units: Scales, title: str
) -> dict[str, Any]:
    """The page's data as JSON: structures of all sets one after another, and the points of each set."""
    every = [frame for frames in sets.values() for frame in frames]
    names = [stores[name].origin(frame.index) for name, frames in sets.items() for frame in frames]
    movie = movie_of(_frames(every, [f"{Path(source).name}, frame {number:,}" for source, number in names]), plain=True)
    colour, start, parts = colours(sets), 0, []
    for name, frames in sets.items():
        parts.append({"name": name, "colour": colour[name], "start": start, **_points(frames, references, units)})
        start += len(frames)
    forces = [np.stack(frame.forces) * units.label_forces.factor for frame in every]
    return {
        **movie_data(movie),
        "title": title,
        "sets": parts,
        "forces": encoded(np.concatenate([values.astype("<f4").ravel() for values in forces])),
        "units": {
            "energy": units.label_energy.unit, "energyError": units.energy.unit,
            "energyFactor": units.energy.factor / units.label_energy.factor,
            "forces": units.label_forces.unit, "forcesError": units.forces.unit,
            "forcesFactor": units.forces.factor / units.label_forces.factor,
        },
    }  # fmt: skip


def _points(frames: list[KeptFrame], references: Floats, units: Scales) -> dict[str, Any]:
    """Energies per atom of each frame, and the components of forces to draw: place of the frame, component in it."""
    energies = np.array([frame.energy for frame in frames])
    counts = np.array([len(frame.numbers) for frame in frames])
    base = np.array([references[np.minimum(frame.numbers, len(references) - 1)].sum() for frame in frames])
    energies = (energies - base[:, None]) / counts[:, None] * units.label_energy.factor
    errors = np.concatenate([np.abs(frame.forces[1] - frame.forces[0]).ravel() for frame in frames])
    place = np.repeat(np.arange(len(frames)), 3 * counts)
    component = np.concatenate([np.arange(3 * count) for count in counts])
    known = np.flatnonzero(np.isfinite(errors))
    if len(known) > MOST_COMPONENTS + MOST_EXTREME:
        extreme = known[np.argsort(-errors[known])[:MOST_EXTREME]]
        sample = np.random.default_rng(0).choice(known, MOST_COMPONENTS, replace=False)
        known = np.union1d(extreme, sample)
    return {
        "label": rounded(energies[:, 0]),
        "predicted": rounded(energies[:, 1]),
        "place": encoded(place[known].astype("<u2")),
        "component": encoded(component[known].astype("<u2")),
    }


def _frames(frames: list[KeptFrame], captions: list[str]) -> MovieFrames:
    def cell_of(frame: KeptFrame) -> Floats | None:
        volume = abs(float(np.linalg.det(frame.cell)))
        return frame.cell if frame.pbc.any() and volume > LEAST_VOLUME else None

    return MovieFrames(
        title="",
        numbers=[frame.numbers for frame in frames],
        positions=[frame.positions for frame in frames],
        cells=[cell_of(frame) for frame in frames],
        pbc=[frame.pbc for frame in frames],
        indices=np.arange(len(frames)),
        num_frames=len(frames),
        x=np.arange(len(frames), dtype=np.float64),
        axis="frame",
        captions=captions,
    )


def _fewer(frames: list[KeptFrame], num_sets: int) -> list[KeptFrame]:
    """A share of the page's frames for one of several sets; those with the largest errors stay."""

    def rank(frame: KeptFrame) -> float:
        return -float(np.nan_to_num(frame.force_error))

    chosen: list[KeptFrame] = []
    atoms = 0
    worst = sorted(frames, key=rank)[:20]
    rest = [frame for frame in frames if not any(frame is other for other in worst)]
    np.random.default_rng(0).shuffle(rest)
    for frame in [*worst, *rest]:
        if len(chosen) >= MOST_FRAMES // num_sets or atoms + len(frame.numbers) > MOST_ATOMS // num_sets:
            break
        chosen.append(frame)
        atoms += len(frame.numbers)
    return sorted(chosen or worst[:1], key=lambda frame: frame.index)
