"""Torsion angles, and the backbone torsions φ and ψ of a peptide from its bonds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Quartet = tuple[int, int, int, int]


@dataclass(frozen=True)
class Residue:
    """An amino acid with both neighbours: the atoms of φ (C-N-CA-C) and ψ (N-CA-C-N)."""

    phi: Quartet
    psi: Quartet

    @property
    def alpha_carbon(self) -> int:
        return self.phi[2]


def torsion(positions: Floats, atoms: Quartet) -> Floats:
    """Angle [F] about the bond of the middle two atoms in positions [F,N,3], degrees in [-180, 180].

    Sign of IUPAC: positive if, seen along the bond, the far atom is clockwise of the near one.
    """
    first, second, third, fourth = (positions[:, atom] for atom in atoms)
    axis = third - second
    axis = axis / np.linalg.norm(axis, axis=-1, keepdims=True)
    near, far = first - second, fourth - third
    near = near - (near * axis).sum(-1, keepdims=True) * axis
    far = far - (far * axis).sum(-1, keepdims=True) * axis
    across = np.cross(axis, near)
    return np.degrees(np.arctan2((across * far).sum(-1), (near * far).sum(-1)))


def backbone(numbers: NDArray[np.int64], pairs: NDArray[np.int64]) -> list[Residue]:
    """The residues of a peptide that have a φ and a ψ, in the order of their nitrogen atoms.

    numbers [N], pairs [B,2] the bonds. Found by connectivity, without names of atoms: a carbonyl carbon is bonded to an
    oxygen that has no other bond; an α carbon has four bonds, one to the nitrogen and one to the next carbonyl carbon.
    """
    near: list[list[int]] = [[] for _ in numbers]
    for first, second in pairs.tolist():
        near[first].append(second)
        near[second].append(first)

    def bonded(atom: int, element: int) -> list[int]:
        return [other for other in near[atom] if numbers[other] == element]

    def carbonyl(atom: int) -> bool:
        return any(len(near[oxygen]) == 1 for oxygen in bonded(atom, 8))

    found = []
    for nitrogen in np.flatnonzero(numbers == 7).tolist():
        before = [carbon for carbon in bonded(nitrogen, 6) if carbonyl(carbon)]
        for alpha in (carbon for carbon in bonded(nitrogen, 6) if len(near[carbon]) == 4):
            for carbon in (carbon for carbon in bonded(alpha, 6) if carbonyl(carbon)):
                after = [other for other in bonded(carbon, 7) if other != nitrogen]
                if len(before) == 1 and len(after) == 1:
                    phi, psi = (before[0], nitrogen, alpha, carbon), (nitrogen, alpha, carbon, after[0])
                    found.append(Residue(phi, psi))
    return found
