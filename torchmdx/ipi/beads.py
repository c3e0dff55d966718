"""Beads: copies of one structure, such as the replicas of a path integral, evaluated together."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchmdx.checkpoints.prepare import DTYPES, PotentialSource, prepare_potential
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.step.captured_step import CapturedStep
from torchmdx.system import Batch, System
from torchmdx.units import BOHR, HARTREE

if TYPE_CHECKING:
    from ase import Atoms

MOST_STEPS = 4  # each holds device memory; simulations ask for one or two numbers of beads

Numbers = NDArray[np.float64]


class Beads:
    """Evaluates any number of copies of a structure, at positions and cells of their own, in one captured step.

    system: elements, charge and periodic directions of the structure. precision: as for CapturedStep. A step is made
    for each number of copies, up to MOST_STEPS; further numbers use a larger step, whose last copies then repeat the
    last structure.
    """

    def __init__(self, potential: Potential | Ensemble, system: System, *, precision: str | None = None) -> None:
        potential.require_elements(system.atomic_numbers)
        self.potential, self.system, self.precision = potential, system, precision
        self._steps: OrderedDict[int, CapturedStep] = OrderedDict()

    @property
    def num_atoms(self) -> int:
        return self.system.num_atoms

    @property
    def steps(self) -> dict[int, CapturedStep]:
        """The current steps by their number of copies."""
        return dict(self._steps)

    def __call__(self, positions: Numbers, cells: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Energies [K], forces [K,N,3] and virials [K,3,3] at positions [K,N,3] and cells [K,3,3]; atomic units.

        Rows of a cell are lattice vectors. The virial is -∂E/∂strain; zero for a cell without volume. Raises ValueError
        for another number of atoms, and what CapturedStep raises.
        """
        count = len(positions)
        if positions.shape != (count, self.num_atoms, 3) or cells.shape != (count, 3, 3):
            raise ValueError(
                f"positions must have shape [K, {self.num_atoms}, 3] and cells [K, 3, 3], "
                f"got {list(positions.shape)} and {list(cells.shape)}"
            )
        places, boxes = positions * BOHR, cells * BOHR
        step = self._step(places, boxes)
        missing = step.batch.num_systems - count
        if missing:
            places = np.concatenate([places, np.repeat(places[-1:], missing, 0)])
            boxes = np.concatenate([boxes, np.repeat(boxes[-1:], missing, 0)])
        result = step(places.reshape(-1, 3), boxes, copy=False)
        volumes = np.abs(np.linalg.det(boxes))[:, None, None]
        virials = np.where(volumes > 0, -result.stress * volumes, 0.0)
        forces = result.forces.reshape(-1, self.num_atoms, 3)
        return (result.energy[:count] / HARTREE, forces[:count] * (BOHR / HARTREE), virials[:count] / HARTREE)

    def _step(self, places: Numbers, boxes: Numbers) -> CapturedStep:
        count = len(places)
        if count not in self._steps and len(self._steps) >= MOST_STEPS:
            larger = [size for size in self._steps if size > count]
            if larger:
                count = min(larger)
            else:
                self._steps.popitem(last=False)
        if count not in self._steps:
            self._steps[count] = self._make(places, boxes)
        self._steps.move_to_end(count)
        return self._steps[count]

    def _make(self, places: Numbers, boxes: Numbers) -> CapturedStep:
        """A step for as many copies as there are places, made at these, so that its neighbour list fits them."""
        system = self.system
        copies = [
            System.create(place, system.atomic_numbers, box, system.pbc, system.charge, system.partial_charges)
            for place, box in zip(places, boxes, strict=True)
        ]
        return CapturedStep(self.potential, Batch.from_systems(copies), stress=True, precision=self.precision)


def load_beads(
    model: PotentialSource, atoms: Atoms, *, dtype: str, device: str | None = None, charge: float | None = None
) -> Beads:
    """Beads of a potential, as `Calculator` takes it, and of a structure; warns of what the potential was not made for.

    Raises ValueError or TypeError for a bad option, and as `torchmdx.load`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    potential = prepare_potential(model, DTYPES[dtype], choose_device(device))
    system = System.from_ase(atoms, charge)
    beads = Beads(potential, system, precision=dtype)
    for doubt in potential.doubts(system.atomic_numbers.tolist(), system.charge, bool(system.pbc.any())):
        warnings.warn(doubt, stacklevel=2)
    return beads
