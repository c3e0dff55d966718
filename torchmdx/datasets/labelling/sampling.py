"""Geometries of molecules: conformers, normal modes, dynamics, random displacements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.datasets.labelling import METHODS
from torchmdx.datasets.labelling.conformers import conformers
from torchmdx.datasets.labelling.dynamics import langevin, relax
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.ledger import Sampled
from torchmdx.datasets.labelling.normal_modes import normal_modes

if TYPE_CHECKING:
    from ase import Atoms

SOFTEST = 100.0  # 1/cm: softer modes are displaced as if they had this wavenumber
NEAREST = 0.6  # of the sum of covalent radii: displacements that bring atoms closer are drawn again
MOST_DRAWS = 100
LARGEST_SEED = 2**31 - 1  # of RDKit

Pulse = Callable[[], None]
Attach = Callable[[UnlabelledStructure], "Atoms"]  # gives a structure a calculator


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How geometries are made from each molecule.

    Attributes:
        count: Geometries of each starting structure, or, with method "conformers", of each molecule.
        conformers: Starting structures of each SMILES. temperature K.
        rattle: Standard deviation of each coordinate, Å. timestep fs. spacing and equilibration: steps of dynamics
            between geometries and before the first. friction 1/ps.
    """

    method: str
    count: int = 100
    conformers: int = 1
    temperature: float = 300.0
    rattle: float = 0.05
    timestep: float = 0.5
    spacing: int = 50
    equilibration: int = 1000
    friction: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"--sample must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name in ("temperature", "rattle", "timestep", "friction"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"--{name} must be > 0, got {value}")
        for name, least in (("count", 1), ("conformers", 1), ("spacing", 1), ("equilibration", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} must be at least {least}, got {getattr(self, name)}")

    def settings(self) -> dict[str, Any]:
        """Settings by their names in error messages."""
        return {f"sampling's {name}": value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Molecule:
    """A SMILES or a structure to sample, and its index among all."""

    source: int
    smiles: str | None
    structure: UnlabelledStructure | None
    multiplicity: int | None = None


def sample(molecule: Molecule, sampling: Sampling, labeller: Labeller, pulse: Pulse) -> Sampled:
    """The geometries of one molecule; equal for the same molecule, index and settings.

    Errors of a calculator before the first geometry are raised; a later one ends that starting structure.
    """
    found: list[UnlabelledStructure] = []
    notes: list[str] = []
    starts = _starts(molecule, sampling)
    wanted = sampling.count if sampling.method == "conformers" else sampling.conformers
    if molecule.smiles is not None and len(starts) < wanted:
        notes.append(f"{len(starts)} distinct conformers instead of {wanted}")
    if sampling.method == "conformers":
        return Sampled(starts, "; ".join(notes))
    for number, start in enumerate(starts):
        rng = np.random.default_rng([sampling.seed, molecule.source, number])
        attach = functools.partial(labeller.attach, frame=f"{molecule.source}-start-{number}")
        made = 0
        try:
            for positions in _METHODS[sampling.method](start, sampling, attach, rng, pulse):
                found.append(start.moved(positions))
                made += 1
                if made == sampling.count:
                    break
        except Exception as error:  # whatever the calculator raises
            if not found and number == len(starts) - 1:
                raise
            notes.append(f"{made} of {sampling.count} geometries of start {number}: {type(error).__name__}: {error}")
    return Sampled(found, "; ".join(notes))


def _starts(molecule: Molecule, sampling: Sampling) -> list[UnlabelledStructure]:
    if molecule.smiles is None:
        assert molecule.structure is not None
        return [molecule.structure]
    count = sampling.count if sampling.method == "conformers" else sampling.conformers
    seed = int(np.random.default_rng([sampling.seed, molecule.source]).integers(1, LARGEST_SEED))
    return conformers(molecule.smiles, count, seed, molecule.multiplicity)


def _along_modes(
    start: UnlabelledStructure, sampling: Sampling, attach: Attach, rng: np.random.Generator, pulse: Pulse
) -> Iterator[np.ndarray]:
    atoms = attach(start)
    relax(atoms, pulse)
    modes = normal_modes(atoms, pulse)
    relaxed = start.moved(atoms.positions)
    while True:
        yield draw(relaxed, lambda: modes.displacement(rng, sampling.temperature, SOFTEST))


def _by_dynamics(
    start: UnlabelledStructure, sampling: Sampling, attach: Attach, rng: np.random.Generator, pulse: Pulse
) -> Iterator[np.ndarray]:
    atoms = attach(start)
    relax(atoms, pulse)
    yield from langevin(
        atoms,
        rng,
        pulse,
        temperature=sampling.temperature,
        timestep=sampling.timestep,
        friction=sampling.friction * 1e-3,
        equilibration=sampling.equilibration,
        spacing=sampling.spacing,
    )


def _rattled(
    start: UnlabelledStructure, sampling: Sampling, attach: Attach, rng: np.random.Generator, pulse: Pulse
) -> Iterator[np.ndarray]:
    while True:
        yield draw(start, lambda: rng.normal(scale=sampling.rattle, size=start.positions.shape))


_METHODS = {"normal-modes": _along_modes, "md": _by_dynamics, "rattle": _rattled}


def draw(start: UnlabelledStructure, displacement: Callable[[], np.ndarray]) -> np.ndarray:
    """Displaced positions [N,3] whose atoms do not run into each other. Raises ValueError if none are found."""
    for _ in range(MOST_DRAWS):
        positions = start.positions + displacement()
        if not collide(start.moved(positions)):
            return positions
    raise ValueError(
        f"displacements must keep atoms {NEAREST:g} of the sum of their covalent radii apart, got {MOST_DRAWS} in a "
        "row that do not: lower --temperature or --rattle"
    )


def collide(geometry: UnlabelledStructure, nearest: float = NEAREST) -> bool:
    """Whether two atoms are closer than this part of the sum of their covalent radii."""
    from ase.data import covalent_radii
    from ase.neighborlist import neighbor_list

    radii = covalent_radii[geometry.numbers] * nearest
    return len(neighbor_list("i", geometry.atoms(), list(radii))) > 0
