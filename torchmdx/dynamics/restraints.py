"""Harmonic restraints: on distances, angles, torsions and positions, with values for each structure of a batch.

Each adds E = k/2 (q - q₀)² to the energy of a structure, for a coordinate q of its atoms. With another q₀ in each copy
of a structure, the copies are the windows of umbrella sampling. Atoms are numbered within a structure. A reference q₀
or a stiffness k is one number for all structures or one for each [S]; a structure in which k is 0 is not restrained.
Positions are those of the run, which are never wrapped into the cell: atoms of a molecule must begin in one piece.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.coordinates import angles, distances, torsions
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.runtime.damaged_file import naming, parse_json

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Internal(ABC):
    """A restraint on a coordinate of the relative positions of some atoms."""

    atoms: tuple[int, ...]
    reference: Any
    stiffness: Any
    size: ClassVar[int]
    kind: ClassVar[int]
    unit: ClassVar[float]  # of the reference

    def __post_init__(self) -> None:
        object.__setattr__(self, "atoms", _checked_atoms(type(self).__name__, self.atoms, self.size))
        if not np.isfinite(np.asarray(self.reference, dtype=np.float64)).all():
            raise ValueError(f"reference must be finite, got {self.reference}")
        _require_stiffness(self.stiffness)

    def values(self, snapshot: Snapshot) -> Floats:
        """q of each structure [S], in the unit of the reference; NaN where a structure does not have these atoms."""
        starts = snapshot.particles.starts
        has = np.diff(starts) > max(self.atoms)
        found = np.full(len(has), np.nan)
        places = starts[:-1][has, None] + np.array(self.atoms)
        found[has] = self._measure(snapshot.positions[places]) / self.unit
        return found

    def energy(self, values: Any) -> Floats:
        """E in eV at these q, with the references and stiffnesses of all structures along the last axis.

        So `energy(q[..., None])` [..., S] are the energies of each q in all windows.
        """
        difference = self._difference(np.asarray(values, dtype=np.float64) - np.asarray(self.reference, np.float64))
        return 0.5 * np.asarray(self.stiffness, np.float64) * (self.unit * difference) ** 2

    @abstractmethod
    def _measure(self, places: Floats) -> Floats:
        """q [M], in Å or radians, of M groups of atoms at these places [M,k,3] Å."""

    def _difference(self, difference: Floats) -> Floats:
        return difference


@dataclass(frozen=True)
class Distance(_Internal):
    """E = k/2 (`|r₁ - r₂|` - q₀)². reference: q₀, Å. stiffness: k, eV/Å²."""

    size, kind, unit = 2, 0, 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.min(self.reference) < 0:
            raise ValueError(f"the reference of a distance must be >= 0 Å, got {np.min(self.reference)}")

    def _measure(self, places: Floats) -> Floats:
        return distances(places)


@dataclass(frozen=True)
class Angle(_Internal):
    """E = k/2 (θ - q₀)² for the angle θ at the second of three atoms. reference: q₀, degrees. stiffness: k, eV/rad²."""

    size, kind, unit = 3, 1, math.pi / 180

    def __post_init__(self) -> None:
        super().__post_init__()
        given = np.asarray(self.reference, dtype=np.float64)
        if ((given < 0) | (given > 180)).any():
            raise ValueError(f"the reference of an angle must be from 0 to 180 degrees, got {self.reference}")

    def _measure(self, places: Floats) -> Floats:
        return angles(places)


@dataclass(frozen=True)
class Torsion(_Internal):
    """E = k/2 d² for the torsion φ of four atoms, d = φ - q₀ reduced to [-π, π].

    φ has the sign of IUPAC, from -180 to 180 degrees. reference: q₀, degrees. stiffness: k, eV/rad². At d = ±π the
    force jumps, which is never reached if k is several times larger than the barriers in φ.
    """

    size, kind, unit = 4, 2, math.pi / 180

    def _measure(self, places: Floats) -> Floats:
        return torsions(places)

    def _difference(self, difference: Floats) -> Floats:
        return difference - 360.0 * np.round(difference / 360.0)


@dataclass(frozen=True)
class Position:
    """E = k/2 Σ `|r - r₀|²` over some atoms. stiffness: k, eV/Å².

    Attributes:
        reference: r₀ [n,3] Å, or [S,n,3] for each structure; None takes the positions at the beginning.
    """

    atoms: tuple[int, ...]
    stiffness: Any
    reference: Any = None
    kind: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "atoms", _checked_atoms("Position", self.atoms, None))
        _require_stiffness(self.stiffness)
        if self.reference is None:
            return
        given = np.asarray(self.reference, dtype=np.float64)
        if given.ndim not in (2, 3) or given.shape[-2:] != (len(self.atoms), 3):
            raise ValueError(
                f"the reference of {len(self.atoms)} positions must have shape [{len(self.atoms)}, 3], or that for "
                f"each structure, got {list(given.shape)}"
            )
        if not np.isfinite(given).all():
            raise ValueError("reference must be finite, got positions that are not")


Restraint = Distance | Angle | Torsion | Position
KINDS: dict[str, type[Distance] | type[Angle] | type[Torsion] | type[Position]] = {
    "distance": Distance,
    "angle": Angle,
    "torsion": Torsion,
    "position": Position,
}


def read_restraints(path: str | Path) -> list[Restraint]:
    """Restraints from a JSON file with a list of tables, each as for `restraint_of`.

    Raises ValueError for other content, and OSError.
    """
    path = Path(path)
    with naming(path):
        given = parse_json(path.read_text())
        if not isinstance(given, list) or not given:
            raise ValueError(f"{str(path)!r} must hold a list of restraints, got {type(given).__name__}")
        return [restraint_of(table, f"restraint {number} in {str(path)!r}") for number, table in enumerate(given)]


def restraint_of(given: Any, where: str) -> Restraint:
    """A restraint from a table {"kind": "torsion", "atoms": [...], "reference": ..., "stiffness": ...}, as in a file.

    Args:
        where: The place of the table, for errors.

    Raises:
        ValueError: For what is no restraint.
        IndexError: For what is no restraint.
    """
    if not isinstance(given, dict) or given.get("kind") not in KINDS:
        kind = given.get("kind") if isinstance(given, dict) else given
        raise ValueError(f"{where} must have a kind, one of {', '.join(KINDS)}, got {kind!r}")
    made = KINDS[given["kind"]]
    needed = {"atoms", "stiffness"} | ({"reference"} if made is not Position else set())
    names = set(given) - {"kind"}
    if missing := needed - names:
        raise ValueError(f"{where} must have {', '.join(sorted(needed))}, got none for {', '.join(sorted(missing))}")
    if unknown := names - {"atoms", "stiffness", "reference"}:
        raise ValueError(f"{where} may have kind, atoms, reference and stiffness, got {', '.join(sorted(unknown))!r}")
    try:
        return made(**{name: given[name] for name in names})
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{where}: {error}") from None


def _checked_atoms(name: str, given: Sequence[int], size: int | None) -> tuple[int, ...]:
    atoms = np.asarray(given)
    if atoms.ndim != 1 or not atoms.size or not np.issubdtype(atoms.dtype, np.integer):
        raise ValueError(f"atoms of {name} must be a list of indices, got {given!r}")
    found = tuple(atoms.tolist())
    if size is not None and len(found) != size:
        raise ValueError(f"{name} needs {size} atoms, got {len(found)}")
    if min(found) < 0:
        raise IndexError(f"atoms of {name} must be >= 0, got {min(found)}")
    if len(set(found)) != len(found):
        raise ValueError(f"atoms of {name} must differ, got {list(found)}")
    return found


def _require_stiffness(given: Any) -> None:
    values = np.asarray(given, dtype=np.float64)
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        raise ValueError(f"stiffness must be >= 0 and finite, got {float(values[~good].flat[0])}")
