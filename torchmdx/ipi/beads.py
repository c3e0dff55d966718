"""Beads: copies of one structure, such as the replicas of a path integral, evaluated together."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchmdx.checkpoints.prepare import DTYPES, PotentialSource, prepare_potential
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.precisions import require_precision
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch, System
from torchmdx.structures.units import BOHR, HARTREE

if TYPE_CHECKING:
    from ase import Atoms

MOST_STEPS = 4  # each holds device memory; simulations ask for one or two numbers of beads

Numbers = NDArray[np.float64]
Arrays = Numbers | Sequence[Numbers]


@dataclass(frozen=True, eq=False)
class _Boxes:
    """rows: cells [K,3,3], Å. factors [K,1,1]: from stress, eV/Å³, to virial, Hartree.

    Attributes:
        key: The cells as they were given, bohr.
        flat ([K]): Which cells have no volume; None if all have one.
    """

    key: list[bytes | bool]
    rows: Numbers
    factors: Numbers
    flat: NDArray[np.bool_] | None

    @classmethod
    def of(cls, key: list[bytes | bool], cells: Arrays) -> _Boxes:
        rows = np.stack(list(cells)) * BOHR
        volumes = np.abs(np.linalg.det(rows))
        flat = ~(volumes > 0)
        return cls(key, rows, (-volumes / HARTREE)[:, None, None], flat if flat.any() else None)

    def filled(self, missing: int) -> Numbers:
        """rows, and the last of them as often as `missing` says."""
        return self.rows if not missing else np.concatenate([self.rows, np.repeat(self.rows[-1:], missing, 0)])


class Beads:
    """Evaluates any number of copies of a structure, at positions and cells of their own, in one captured step.

    Args:
        system: Elements, charge and periodic directions of the structure.
        precision: As for CapturedStep. A step is made for each number of copies, up to MOST_STEPS; further numbers use
            a larger step, whose last copies then repeat the last structure.
    """

    def __init__(self, potential: Potential | Ensemble, system: System, *, precision: str | None = None) -> None:
        potential.require_elements(system.atomic_numbers)
        self.potential, self.system, self.precision = potential, system, precision
        self._steps: OrderedDict[int, CapturedStep] = OrderedDict()
        self._boxes: _Boxes | None = None
        self._known: tuple[CapturedStep, _Boxes] | None = None  # the step whose cells are those of the boxes

    @property
    def num_atoms(self) -> int:
        return self.system.num_atoms

    @property
    def steps(self) -> dict[int, CapturedStep]:
        """The current steps by their number of copies."""
        return dict(self._steps)

    def __call__(self, positions: Arrays, cells: Arrays, *, columns: bool = False) -> tuple[Numbers, Numbers, Numbers]:
        """Energies [K], forces [K,N,3] and virials [K,3,3] at positions [K,N,3] and cells [K,3,3]; atomic units.

        Positions and cells: arrays, or sequences of K arrays. Rows of a cell are lattice vectors, or its columns with
        `columns`. The virial is -∂E/∂strain; zero for a cell without volume.

        Raises:
            ValueError: For another number of atoms, and what CapturedStep raises.
        """
        count = len(positions)
        self._require_positions(positions)
        boxes = self._boxes_of(cells, count, columns)
        step = self._step(positions, boxes.rows)
        given, total = step.buffers.host_inputs["positions"], count * self.num_atoms
        # i-PI evaluates between milliseconds of its own work, when every line of Python is slow: there are few here.
        places = given.numpy()
        np.concatenate(positions, out=places[:total])
        np.multiply(places[:total], BOHR, out=places[:total])
        missing = step.batch.num_systems - count
        if missing:
            places[total:] = np.tile(places[total - self.num_atoms : total], (missing, 1))
        known, self._known = self._known, None  # not known if the evaluation fails
        result = step(given, None if known == (step, boxes) else boxes.filled(missing), copy=False)
        self._known = (step, boxes)
        virials = result.stress[:count] * boxes.factors
        if boxes.flat is not None:
            virials[boxes.flat] = 0.0
        forces = result.forces[:total] * (BOHR / HARTREE)
        return result.energy[:count] / HARTREE, forces.reshape(count, self.num_atoms, 3), virials

    def _require_positions(self, positions: Arrays) -> None:
        if set(map(len, positions)) != {self.num_atoms} or any(place.shape[1:] != (3,) for place in positions[:1]):
            shapes = sorted({place.shape for place in positions})
            raise ValueError(
                f"positions must have shape [K, {self.num_atoms}, 3], got {len(positions)} of shape "
                f"{', '.join(str(list(shape)) for shape in shapes)}"
            )

    def _boxes_of(self, cells: Arrays, count: int, columns: bool) -> _Boxes:
        """The cells in Å, with what follows from them, which is kept while they do not change."""
        key = [columns, *(cell.tobytes() for cell in cells)]
        if self._boxes is None or self._boxes.key != key or len(cells) != count:
            if len(cells) != count or any(cell.shape != (3, 3) for cell in cells):
                shapes = sorted({tuple(cell.shape) for cell in cells})
                raise ValueError(
                    f"cells must have shape [K, 3, 3] for the positions of K = {count} structures, "
                    f"got {len(cells)} of shape {', '.join(str(list(shape)) for shape in shapes)}"
                )
            self._boxes = _Boxes.of(key, [cell.T for cell in cells] if columns else cells)
        return self._boxes

    def _step(self, positions: Arrays, rows: Numbers) -> CapturedStep:
        count = len(positions)
        if count not in self._steps and len(self._steps) >= MOST_STEPS:
            larger = [size for size in self._steps if size > count]
            if larger:
                count = min(larger)
            else:
                self._steps.popitem(last=False)
        if count not in self._steps:
            self._steps[count] = self._make(np.stack(list(positions)) * BOHR, rows)
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
    model: PotentialSource,
    atoms: Atoms,
    *,
    dtype: str,
    device: str | None = None,
    charge: float | None = None,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
) -> Beads:
    """Beads of a potential, as `Calculator` takes it, and of a structure; warns of what the potential was not made for.

    Raises:
        ValueError: For a bad option, and as `torchmdx.load`.
        TypeError: For a bad option, and as `torchmdx.load`.
    """
    require_precision(dtype, "dtype")
    target = choose_device(device)
    potential = prepare_potential(model, DTYPES[dtype], target, coulomb_cutoff, coulomb, coulomb_accuracy, head)
    system = System.from_ase(atoms, charge)
    beads = Beads(potential, system, precision=dtype)
    for doubt in potential.doubts(system.atomic_numbers.tolist(), system.charge, bool(system.pbc.any())):
        warnings.warn(doubt, stacklevel=2)
    return beads
