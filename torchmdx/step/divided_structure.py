"""A structure divided among devices: the domain of each, and the sums of their results."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.models.potential import Potential
from torchmdx.runtime.cpu_threads import limited_to
from torchmdx.step.buffers import copy_checked
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.divided_domain import DeviceDomain, DomainPart, DomainSums
from torchmdx.step.division import Division, Grid, divide
from torchmdx.step.domain_reach import reach
from torchmdx.step.domain_step import DomainStep
from torchmdx.step.results import NonFiniteError, StepResult
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# Up to this number of atoms, waking the threads of all cores takes longer than they save.
ONE_THREAD_UP_TO = 300_000
# Forces [N,3] and energies [N] of all atoms on the host; None if they are not wanted.
Sums = tuple[Tensor, Tensor | None]
SAMPLE = 1000  # atoms that are looked at before an evaluation: other structures than the last one are noticed by them


class DividedStructure:
    """A structure with its current positions and cell, and the domains that it is divided into.

    Args:
        devices: Of the domains, as many as the grid has bricks.
        grid: Parts along each cell vector.
        skin: Å.
        options: Mode, precision, audit_every and virials of `DomainStep`.

    Attributes:
        frame: The cell, with unit vectors along directions that are not periodic.
    """

    def __init__(
        self,
        batch: Batch,
        potential: Potential,
        devices: Sequence[torch.device],
        grid: Grid,
        skin: float,
        options: dict[str, Any],
    ) -> None:
        self.batch, self.skin, self.grid = batch, skin, grid
        self.positions, self.cell = batch.positions.double().clone(), batch.cell.double().clone()
        if any(device.type == "cuda" for device in devices):
            self.positions = self.positions.pin_memory()
        self.pbc = batch.pbc[0].numpy()
        self.frame = lattice.complete(self.cell, batch.pbc)[0].numpy()
        self._volumes = _volumes(self.frame, self.cell)
        self.reach, self.cutoff = reach(potential), float(potential.cutoff)
        folded = self.pbc & (np.array(self.grid) == 1)
        self.domains = []
        for device in devices[: math.prod(self.grid)]:
            step = DomainStep(
                potential_on(potential, device), folded.tolist(), charge=float(batch.charge[0]), **options
            )
            self.domains.append(DeviceDomain(step, device))
        self.division: Division | None = None
        self.sums: DomainSums | None = None
        self._pinned: dict[str, Tensor] = {}  # on the host, for results
        self._queued: list[torch.cuda.Stream] = []

    def take_in(self, positions: Any, cell: Any, evaluation: int) -> None:
        """Copies positions and cell in, for the evaluation with this number.

        Raises:
            ValueError: If they do not fit.
            TypeError: If they do not fit.
            NonFiniteError: For positions; then the last cell is kept.
        """
        given = changed_cell(self.cell, cell, self.batch)
        self.wait()  # for a call that was interrupted while it waited
        frame = self.frame if given is self.cell else lattice.complete(given, self.batch.pbc)[0].numpy()
        with limited_to(self._threads):
            copy_checked("positions", self.positions, positions, in_parallel=self._threads is None)
            require_finite_positions(evaluation, self.positions.numpy())
        if given is not self.cell:
            self.cell, self.frame, self._volumes = given, frame, _volumes(frame, given)

    def divide(self) -> None:
        """Divides the structure anew."""
        settings = dict(reach=self.reach, skin=self.skin, cutoff=self.cutoff)
        places = self.positions.numpy()
        self.division = divide(places, self.frame, self.pbc, self.grid, **settings)
        self.sums = DomainSums(self.division, self.domains[0].device)

    def holds(self, *, sample: bool = False) -> bool:
        """Whether no atom has moved too far since the last division. sample: looks at some of the atoms only."""
        if self.division is None:
            return False
        every = max(1, self.batch.num_atoms // SAMPLE) if sample else 1
        with limited_to(self._threads):
            return self.division.holds(self.positions.numpy(), self.frame, every)

    @property
    def checks_in_parallel(self) -> bool:
        """Whether domains check the division while they evaluate: on a GPU that takes no time."""
        return all(domain.device.type == "cuda" for domain in self.domains)

    def works(self) -> list[Callable[[], DomainPart]]:
        """Puts the atoms of all domains in place; for each the function that evaluates it."""
        division = self.division
        assert division is not None
        return [
            domain.begin(self.batch, division, share, self.positions, self.frame)
            for domain, share in zip(self.domains, division.shares, strict=True)
        ]

    def launched(self, *, energies: bool) -> tuple[list[DomainPart], Sums] | None:
        """The results of all domains and their sums, queued by this thread alone, which waits once, in the end.

        Threads would hand Python's lock to each other hundreds of times. None if a domain needs more than a replay:
        then `works` have to be done.
        """
        division = self.division
        assert division is not None
        domains = list(zip(self.domains, division.shares, strict=True))
        if not all(domain.may_launch(share) for domain, share in domains):
            return None
        self._queued = [torch.cuda.current_stream(d.device) for d in self.domains if d.device.type == "cuda"]
        try:
            for domain in self.domains:
                domain.launch(self.positions, self.frame)
            deform, allowed = division.allowed(self.frame)
            queued = [domain.launched(deform) for domain in self.domains]
            sums = self._summed(queued, energies=energies)
        finally:  # whatever happens, no GPU reads positions after this
            self.wait()
        full = self._volumes[0]
        found = [part for domain in self.domains if (part := domain.landed(full, allowed)) is not None]
        return (found, sums) if len(found) == len(self.domains) else None

    def wait(self) -> None:
        """Waits for what was queued."""
        for stream in self._queued:
            stream.synchronize()
        self._queued = []

    def summed(self, found: list[DomainPart], *, energies: bool) -> Sums:
        """Forces and, if wanted, energies of all atoms, from the results of all domains."""
        device = self.domains[0].device
        sums = self._summed([(part.energies, part.forces) for part in found], energies=energies)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return sums

    def _summed(self, found: list[tuple[Tensor, Tensor]], *, energies: bool) -> Sums:
        """As `summed`, of energies and forces; complete once the first device is."""
        assert self.sums is not None
        with limited_to(self._threads):
            forces = self._on_host("forces", self.sums.forces([forces for _, forces in found]))
            of_atoms = self._on_host("energies", self.sums.energies([of for of, _ in found])) if energies else None
        return forces, of_atoms

    def result(self, found: list[DomainPart], sums: Sums, *, stress: bool) -> StepResult:
        """The results of the whole structure, in arrays of their own."""
        energy, virial = sum(part.energy for part in found), sum((part.virial for part in found), np.zeros((3, 3)))
        forces, of_atoms = sums
        size = self._volumes[1]
        return StepResult(
            energy=np.array([energy]),
            forces=self._own("forces", forces),
            energies=None if of_atoms is None else self._own("energies", of_atoms),
            stress=(virial / size if size > 0 else np.full((3, 3), np.nan))[None] if stress else None,
        )

    def _on_host(self, name: str, values: Tensor) -> Tensor:
        """Values on a device in pinned memory that is kept, once the device is done; values on the host themselves."""
        if values.device.type == "cpu":
            return values
        if name not in self._pinned:
            self._pinned[name] = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        return self._pinned[name].copy_(values, non_blocking=True)

    def _own(self, name: str, values: Tensor) -> NDArray[np.float64]:
        """As an array that is not used again."""
        with limited_to(self._threads):
            return values.clone().numpy() if name in self._pinned else values.numpy()

    def parts(self) -> list[tuple[torch.device, int, int, CapturedStep | None]]:
        """(device, owned atoms, ghosts, step) of each domain; the step of one without atoms is None."""
        assert self.division is not None
        return [
            (domain.device, share.num_owned, len(share.atoms) - share.num_owned, domain.step.step)
            for domain, share in zip(self.domains, self.division.shares, strict=True)
        ]

    @property
    def _threads(self) -> int | None:
        """Threads for sums and differences of all atoms; None: as many as torch is set to."""
        return 1 if self.batch.num_atoms <= ONE_THREAD_UP_TO else None


def _volumes(frame: NDArray[np.float64], cell: Tensor) -> tuple[float, float]:
    """Of a frame [3,3] and of the cell [1,3,3] that it completes, Å³."""
    return float(lattice.volume(torch.from_numpy(frame))), float(lattice.volume(cell)[0])


def potential_on(potential: Potential, device: torch.device) -> Potential:
    """The potential itself, or a copy on another device."""
    return potential if potential.device == device else copy.deepcopy(potential).to(device)


def changed_cell(last: Tensor, cell: Any, batch: Batch) -> Tensor:
    """The cell [1,3,3] that is given for the next evaluation; `last` itself if that is None or the same.

    Raises:
        ValueError: For another shape, and for one that is no lattice along the periodic directions of the batch.
        TypeError: For what are no numbers.
    """
    if cell is None:
        return last
    given = last.clone()
    copy_checked("cell", given, cell)
    if torch.equal(given, last):
        return last
    lattice.require_lattice(given, batch.pbc)
    return given


def require_finite_positions(evaluation: int, positions: NDArray[np.float64]) -> None:
    """Raises NonFiniteError, with the number of the evaluation, for positions [N,3] that are NaN or infinite."""
    if math.isfinite(float(torch.from_numpy(positions).sum())):  # in half the time of NumPy's sum
        return
    bad = np.flatnonzero(~np.isfinite(positions).all(1))
    if len(bad):
        raise NonFiniteError(
            f"evaluation {evaluation}: positions of {len(bad)} atoms are not finite, the first is atom {bad[0]}"
        )
