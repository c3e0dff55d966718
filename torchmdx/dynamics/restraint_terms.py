"""The restraints of a batch as arrays of terms, and their energies and forces in NumPy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics import coordinates
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.restraints import Angle, Distance, Position, Restraint, Torsion
from torchmdx.step.results import StepError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MEASURES = {
    Distance.kind: (2, coordinates.distances, coordinates.distance_gradients),
    Angle.kind: (3, coordinates.angles, coordinates.angle_gradients),
    Torsion.kind: (4, coordinates.torsions, coordinates.torsion_gradients),
}
NAMES = {Distance.kind: "distance", Angle.kind: "angle", Torsion.kind: "torsion", Position.kind: "position"}


class RestraintError(StepError):
    """A restraint has no force, since atoms coincide or three of them are in line; names the restraint."""


@dataclass(frozen=True, eq=False)
class RestraintTerms:
    """M terms, in order of their structures, which are restrained independently.

    kind [M], atoms [M,4] of the batch (unused ones repeat the first), reference [M] Å or radians, point [M,3] Å of
    positions, stiffness [M] eV/Å² or eV/rad², system [M].
    """

    kind: Integers
    atoms: Integers
    reference: Floats
    point: Floats
    stiffness: Floats
    system: Integers
    num_systems: int

    @classmethod
    def of(cls, restraints: Sequence[Restraint], particles: Particles, positions: Floats) -> RestraintTerms:
        """Terms of restraints of a batch at its first positions [N,3].

        Raises:
            TypeError: For other numbers of references or stiffnesses than structures.
            ValueError: For other numbers of references or stiffnesses than structures.
            IndexError: For atoms that a structure does not have.
            RestraintError: For coordinates without a gradient at the beginning.
        """
        rows: list[tuple[Any, ...]] = []
        for number, restraint in enumerate(restraints):
            if not isinstance(restraint, Restraint):
                raise TypeError(f"restraints must be classes of torchmdx.dynamics.restraints, got {restraint!r}")
            rows += _rows(restraint, f"restraint {number}", particles, positions)
        rows.sort(key=lambda row: row[-1])  # stable
        columns = list(zip(*rows, strict=True)) if rows else [()] * 6
        kind, atoms, reference, point, stiffness, system = (np.array(column) for column in columns)
        terms = cls(
            kind=kind.astype(np.int64),
            atoms=atoms.astype(np.int64).reshape(-1, 4),
            reference=reference.astype(np.float64),
            point=point.astype(np.float64).reshape(-1, 3),
            stiffness=stiffness.astype(np.float64),
            system=system.astype(np.int64),
            num_systems=particles.num_systems,
        )
        terms.require_gradients(positions)
        return terms

    def __len__(self) -> int:
        return len(self.kind)

    def in_place(self) -> NDArray[np.bool_]:
        """The structures [S] with restraints on positions, which do not move freely as a whole."""
        return np.bincount(self.system[self.kind == Position.kind], minlength=self.num_systems) > 0

    def digest(self) -> str:
        """SHA-256 of all values: two runs with the same digest have the same restraints."""
        arrays = (self.kind, self.atoms, self.reference, self.point, self.stiffness, self.system)
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def evaluate(self, positions: Floats) -> tuple[Floats, Floats, Floats]:
        """Energies [S] eV, forces [N,3] eV/Å, and Σ r·f of each structure [S] eV, at positions [N,3] Å."""
        energy, virial, forces = np.zeros(len(self)), np.zeros(len(self)), np.zeros_like(positions)
        for kind, (size, measure, gradients) in MEASURES.items():
            own = self.kind == kind
            if not own.any():
                continue
            atoms = self.atoms[own, :size]
            places, stiffness = positions[atoms], self.stiffness[own]
            value = measure(places)
            difference = _difference(kind, value - self.reference[own])
            energy[own] = 0.5 * stiffness * difference**2
            with np.errstate(divide="ignore", invalid="ignore"):
                pull = -(stiffness * difference)[:, None, None] * gradients(places)
            if kind == Distance.kind:  # angles do not change if all is scaled
                virial[own] = -stiffness * difference * value
            np.add.at(forces, atoms, pull)
        own = self.kind == Position.kind
        if own.any():
            atoms, stiffness = self.atoms[own, 0], self.stiffness[own]
            difference = positions[atoms] - self.point[own]
            energy[own] = 0.5 * stiffness * (difference**2).sum(-1)
            np.add.at(forces, atoms, -stiffness[:, None] * difference)
        return self._sums(energy), forces, self._sums(virial)

    def _sums(self, values: Floats) -> Floats:
        """Of the terms of each structure [S]; also without terms, which have no dtype."""
        found: Floats = np.bincount(self.system, values, self.num_systems).astype(np.float64)
        return found

    def require_gradients(self, positions: Floats) -> None:
        """Raises RestraintError if a coordinate has no gradient at these positions."""
        for kind, (size, _, gradients) in MEASURES.items():
            own = np.flatnonzero(self.kind == kind)
            with np.errstate(divide="ignore", invalid="ignore"):
                found = gradients(positions[self.atoms[own, :size]])
            bad = own[~np.isfinite(found).all((1, 2))]
            if len(bad):
                atoms = ", ".join(map(str, self.atoms[bad[0], :size]))
                cause = "two atoms coincide" if kind == Distance.kind else "three atoms are in line or two coincide"
                raise RestraintError(f"the {NAMES[kind]} of atoms {atoms} has no gradient: {cause}")


def _rows(restraint: Restraint, where: str, particles: Particles, positions: Floats) -> list[tuple[Any, ...]]:
    """(kind, atoms, reference, point, stiffness, system) of each term."""
    count = particles.num_systems
    stiffness = _each(restraint.stiffness, f"the stiffness of {where}", count)
    restrained = np.flatnonzero(stiffness > 0)
    sizes = np.diff(particles.starts)
    short = restrained[sizes[restrained] <= max(restraint.atoms)]
    if len(short):
        raise IndexError(
            f"atoms of {where} must be from 0 to {sizes[short[0]] - 1} in structure {short[0]}, "
            f"got {max(restraint.atoms)}"
        )
    if isinstance(restraint, Position):
        return _position_rows(restraint, where, particles, positions, stiffness)
    reference = restraint.unit * _each(restraint.reference, f"the reference of {where}", count)
    fill = (restraint.atoms[0],) * (4 - restraint.size)
    atoms = np.array(restraint.atoms + fill)
    return [
        (restraint.kind, particles.starts[s] + atoms, reference[s], np.zeros(3), stiffness[s], s) for s in restrained
    ]


def _position_rows(
    restraint: Position, where: str, particles: Particles, positions: Floats, stiffness: Floats
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    given = None if restraint.reference is None else np.asarray(restraint.reference, dtype=np.float64)
    if given is not None and given.ndim == 3 and len(given) != particles.num_systems:
        raise ValueError(
            f"the reference of {where} must be for one or {particles.num_systems} structures, got {len(given)}"
        )
    for s in np.flatnonzero(stiffness > 0):
        atoms = particles.starts[s] + np.array(restraint.atoms)
        points = positions[atoms] if given is None else given[s] if given.ndim == 3 else given
        rows += [
            (restraint.kind, [atom] * 4, 0.0, point, stiffness[s], s)
            for atom, point in zip(atoms.tolist(), points, strict=True)
        ]
    return rows


def _each(given: Any, name: str, count: int) -> Floats:
    """One number for each structure."""
    values = np.asarray(given, dtype=np.float64)
    if values.shape not in ((), (count,)):
        raise ValueError(f"{name} must be one number or {count}, got shape {list(values.shape)}")
    return np.broadcast_to(values, (count,))


def _difference(kind: int, difference: Floats) -> Floats:
    if kind != Torsion.kind:
        return difference
    return difference - 2 * np.pi * np.round(difference / (2 * np.pi))
