"""A potential with a barrier known in closed form: one atom between two fixed ones, with a Morse bond to each."""

import numpy as np
import torch
from ase import Atoms
from ase.constraints import FixAtoms
from scipy.optimize import minimize_scalar

import torchmdx

DEPTH, WIDTH, LENGTH, CUTOFF, GAP = 4.0, 1.6, 1.2, 5.0, 3.8  # eV, 1/Å, Å, Å, Å between the fixed atoms


class Morse(torch.nn.Module):
    """A bond of each pair of unlike elements, shifted and with its slope removed at the cutoff."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("depth", torch.tensor(DEPTH))

    def forward(self, vectors, edge_index, atomic_numbers):
        r = torch.linalg.vector_norm(vectors, dim=-1).clamp(max=CUTOFF)
        edge = torch.full_like(r, CUTOFF)
        slope = 2 * WIDTH * (_decay(edge) - _decay(edge) ** 2)
        value = (1 - _decay(r)) ** 2 - (1 - _decay(edge)) ** 2 - slope * (r - CUTOFF)
        unlike = atomic_numbers[edge_index[0]] != atomic_numbers[edge_index[1]]
        out = torch.zeros_like(atomic_numbers, dtype=vectors.dtype)
        return out.index_add(0, edge_index[1], 0.5 * self.depth * value * unlike)


def _decay(r: torch.Tensor) -> torch.Tensor:
    return torch.exp(-WIDTH * (r - LENGTH))


def double_well() -> torchmdx.Potential:
    return torchmdx.wrap(Morse(), cutoff=CUTOFF, elements=[1, 6]).double()


def energy(x: float) -> float:
    """Of the free atom at x Å from the first fixed one, on the line between them."""

    def bond(r: float) -> float:
        def decay(s):
            return np.exp(-WIDTH * (s - LENGTH))

        slope = 2 * WIDTH * (decay(CUTOFF) - decay(CUTOFF) ** 2)
        return DEPTH * ((1 - decay(r)) ** 2 - (1 - decay(CUTOFF)) ** 2 - slope * (r - CUTOFF))

    return bond(x) + bond(GAP - x)


def barrier() -> float:
    lowest = minimize_scalar(energy, bounds=(0.9, 1.5), method="bounded", options={"xatol": 1e-10}).fun
    return energy(GAP / 2) - lowest


def ends(periodic: bool) -> list[Atoms]:
    """The free atom near either fixed one; periodic: in a cell whose face is between them."""
    found = []
    for x in (1.1, GAP - 1.1):
        atoms = Atoms("CHC", [[0, 0, 0], [x, 0.1, 0.05], [GAP, 0, 0]], constraint=FixAtoms([0, 2]))
        if periodic:
            atoms.set_cell([12, 9, 9])
            atoms.pbc = True
            atoms.positions += [12 - GAP / 2, 0, 0]
            atoms.wrap()
        found.append(atoms)
    return found


def curvature() -> float:
    """At the saddle, along the line, eV/Å²."""
    return (energy(GAP / 2 + 1e-3) - 2 * energy(GAP / 2) + energy(GAP / 2 - 1e-3)) / 1e-6
