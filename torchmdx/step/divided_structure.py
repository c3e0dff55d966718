"""A structure divided among devices: the domain of each, and the sums of their results."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.evaluation.derivatives import AtomsTogether
from torchmdx.models.potential import Potential
from torchmdx.runtime.cpu_threads import limited_to
from torchmdx.step.buffers import copy_checked
from torchmdx.step.division import Division, Grid, Share, choose_grid, divide
from torchmdx.step.domain_step import DomainResult, DomainStep, reach
from torchmdx.step.results import NonFiniteError, StepResult
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# Up to this number of atoms, waking the threads of all cores takes longer than they save.
ONE_THREAD_UP_TO = 300_000


class DeviceDomain:
    """A device's part: its step, and the share that this has been given."""

    def __init__(self, step: DomainStep, device: torch.device) -> None:
        self.step, self.device = step, device
        self.share: Share | None = None
        self._cell, self._moves = np.zeros((3, 3)), np.zeros((0, 3))  # moves of the copies that are shifted, in a cell

    def evaluate(
        self, batch: Batch, share: Share, positions: NDArray[np.float64], cell: NDArray[np.float64]
    ) -> DomainResult:
        """Results for a share of the atoms at positions [N,3], given to the step if it has another."""
        moved, shifts = share.moved
        if self.share is not share or not np.array_equal(cell, self._cell):
            self._cell, self._moves = cell.copy(), shifts @ cell
        if self.share is not share:
            self.share = None
            places = positions[share.atoms]
            places[moved] += self._moves
            given = batch.partial_charges
            self.step.assign(
                places, batch.atomic_numbers.numpy()[share.atoms], share.num_owned, cell,
                num_total=batch.num_atoms, hops=share.hops,
                partial_charges=None if given is None else given[torch.from_numpy(share.atoms)],
            )  # fmt: skip
            self.share = share
        if share.num_owned:
            inputs = self.step.inputs
            np.take(positions, share.atoms, axis=0, out=inputs, mode="clip")
            inputs[moved] += self._moves
        try:
            return self.step(None, cell)
        except AtomsTogether as error:  # by the numbers of the whole structure
            raise AtomsTogether(*sorted(int(share.atoms[atom]) for atom in error.args)) from None


class DividedStructure:
    """A structure with its current positions and cell, and the domains that it is divided into.

    Args:
        devices: Of the domains, as many as the grid has bricks.
        grid: Parts along each cell vector; None: those with the fewest copies of atoms.
        skin: Å.
        options: Mode, precision and audit_every of `DomainStep`.

    Attributes:
        frame: The cell, with unit vectors along directions that are not periodic.
    """

    def __init__(
        self,
        batch: Batch,
        potential: Potential,
        devices: Sequence[torch.device],
        grid: Grid | None,
        skin: float,
        options: dict[str, Any],
    ) -> None:
        lattice.require_lattice(batch.cell, batch.pbc)
        self.batch, self.skin = batch, skin
        self.positions, self.cell = batch.positions.double().clone(), batch.cell.double().clone()
        self.pbc = batch.pbc[0].numpy()
        self.frame = lattice.complete(self.cell, batch.pbc)[0].numpy()
        self.reach, self.cutoff = reach(potential), float(potential.cutoff)
        places = self.positions.numpy()
        self.grid = grid or choose_grid(places, self.frame, self.pbc, len(devices), self.reach + skin)
        folded = self.pbc & (np.array(self.grid) == 1)
        self.domains = []
        for device in devices[: math.prod(self.grid)]:
            own = potential if potential.device == device else copy.deepcopy(potential).to(device)
            step = DomainStep(own, folded.tolist(), charge=float(batch.charge[0]), **options)
            self.domains.append(DeviceDomain(step, device))
        self.division: Division | None = None

    def take_in(self, positions: Any, cell: Any, evaluation: int) -> None:
        """Copies positions and cell in, for the evaluation with this number.

        Raises:
            ValueError: If they do not fit.
            TypeError: If they do not fit.
            NonFiniteError: For positions; then the last cell is kept.
        """
        given, frame = self.cell, self.frame
        if cell is not None:
            given = self.cell.clone()
            copy_checked("cell", given, cell)
            if not torch.equal(given, self.cell):
                lattice.require_lattice(given, self.batch.pbc)
                frame = lattice.complete(given, self.batch.pbc)[0].numpy()
        copy_checked("positions", self.positions, positions)
        require_finite_positions(evaluation, self.positions.numpy())
        self.cell, self.frame = given, frame

    def prepare(self) -> bool:
        """Divides the structure anew if its atoms have moved too far; returns whether they have."""
        places = self.positions.numpy()
        if self.division is not None:
            with limited_to(self._threads):
                holds = self.division.holds(places, self.frame)
            if holds:
                return False
        settings = dict(reach=self.reach, skin=self.skin, cutoff=self.cutoff)
        self.division = divide(places, self.frame, self.pbc, self.grid, **settings)
        return True

    def summed(self, found: list[DomainResult], *, stress: bool, energies: bool) -> StepResult:
        assert self.division is not None
        energy, virial = sum(part.energy for part in found), sum((part.virial for part in found), np.zeros((3, 3)))
        of_atoms = np.zeros(self.batch.num_atoms) if energies else None
        if of_atoms is not None:
            for share, part in zip(self.division.shares, found, strict=True):
                of_atoms[share.atoms[: share.num_owned]] = part.energies
        with limited_to(self._threads):
            forces = self.division.summed([part.forces for part in found])
        size = float(lattice.volume(self.cell)[0])
        return StepResult(
            energy=np.array([energy]),
            forces=forces,
            energies=of_atoms,
            stress=(virial / size if size > 0 else np.full((3, 3), np.nan))[None] if stress else None,
        )

    @property
    def _threads(self) -> int | None:
        """Threads for sums and differences of all atoms; None: as many as torch is set to."""
        return 1 if self.batch.num_atoms <= ONE_THREAD_UP_TO else None


def require_finite_positions(evaluation: int, positions: NDArray[np.float64]) -> None:
    """Raises NonFiniteError, with the number of the evaluation, for positions [N,3] that are NaN or infinite."""
    if math.isfinite(positions.sum()):
        return
    bad = np.flatnonzero(~np.isfinite(positions).all(1))
    if len(bad):
        raise NonFiniteError(
            f"evaluation {evaluation}: positions of {len(bad)} atoms are not finite, the first is atom {bad[0]}"
        )
