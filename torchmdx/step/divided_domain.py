"""A device's part of a divided structure: its atoms, the positions that go in, and results that stay on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.evaluation.derivatives import AtomsTogether
from torchmdx.runtime.device_guard import on_device
from torchmdx.step.division import Division, Share
from torchmdx.step.domain_step import DomainStep
from torchmdx.structures.system import Batch


@dataclass(frozen=True, eq=False)
class DomainPart:
    """Results of a domain: as a `DomainResult`, with energies [owned] and forces [N,3] on its device.

    Attributes:
        held: Whether its atoms were within what the division allows.
    """

    energy: float
    energies: Tensor
    forces: Tensor
    virial: NDArray[np.float64]
    held: bool = True


class _AtomsOnDevice:
    """The atoms of a share on a device.

    Attributes:
        moved, shifts: The copies that are shifted [K], and their shifts [K,3] in cell vectors.
        places: Of the owned atoms [owned,3] when the structure was divided.
    """

    def __init__(self, share: Share, division: Division, device: torch.device) -> None:
        moved, shifts = share.moved
        self.atoms = torch.from_numpy(share.atoms).to(device)
        self.moved, self.shifts = torch.from_numpy(moved).to(device), torch.from_numpy(shifts)
        owned = share.num_owned
        places = division.positions[share.atoms[:owned]] + share.shifts[:owned] @ division.cell
        self.places = torch.from_numpy(places).to(device)
        self._cell: NDArray[np.float64] | None = None
        self._moves = torch.zeros(0, 3, dtype=torch.float64)

    def moves(self, cell: NDArray[np.float64]) -> Tensor:
        """Shifts [K,3] in Å."""
        if self._cell is None or not np.array_equal(cell, self._cell):
            self._moves = (self.shifts @ torch.from_numpy(cell)).to(self.atoms.device)
            self._cell = cell.copy()
        return self._moves

    def farthest(self, places: Tensor, deform: NDArray[np.float64] | None) -> Tensor:
        """How far [] an owned atom has moved, Å, apart from a deformation of the cell; places [M,3]."""
        before = self.places if deform is None else self.places @ torch.from_numpy(deform).to(self.places.device)
        x, y, z = (places[: len(before)] - before).square_().unbind(1)
        return (x + y).add_(z).max().sqrt_()


class _Placed(NamedTuple):
    """farthest []: how far an atom has moved, Å. done: recorded after the positions, on a GPU."""

    farthest: Tensor
    done: torch.cuda.Event | None


class DeviceDomain:
    """A device's part: its step, and the share that this has been given."""

    def __init__(self, step: DomainStep, device: torch.device) -> None:
        self.step, self.device = step, device
        self.share: Share | None = None
        self._atoms: _AtomsOnDevice | None = None

    def begin(
        self, batch: Batch, division: Division, share: Share, positions: Tensor, cell: NDArray[np.float64]
    ) -> Callable[[], DomainPart]:
        """Puts a share of the atoms at positions [N,3] on the host; returns the function that evaluates them.

        The function may run in another thread, and gives the step the share if that has another. Placing is of many
        short operations, each of which lets go of Python's lock: threads would hand it to each other at each of them.
        """
        if self.share is share:
            return functools.partial(
                self._evaluate, share, division, cell, self._place(share, positions, cell, division)
            )

        def evaluate() -> DomainPart:
            self._take(batch, division, share, positions.numpy(), cell)
            return self._evaluate(share, division, cell, self._place(share, positions, cell, division))

        return evaluate

    def _place(self, share: Share, positions: Tensor, cell: NDArray[np.float64], division: Division) -> _Placed | None:
        """Writes the positions of a share's atoms into the inputs of the step; None where there is nothing to do."""
        if not share.num_owned:
            return None
        assert self._atoms is not None
        with on_device(self.device):
            places = self.step.device_inputs
            torch.index_select(positions.to(self.device, non_blocking=True), 0, self._atoms.atoms, out=places)
            places[self._atoms.moved] += self._atoms.moves(cell)
            farthest = self._atoms.farthest(places, division.allowed(cell)[0])  # during the evaluation
            on_gpu = self.device.type == "cuda"
            return _Placed(farthest, torch.cuda.current_stream(self.device).record_event() if on_gpu else None)

    def _evaluate(
        self, share: Share, division: Division, cell: NDArray[np.float64], placed: _Placed | None
    ) -> DomainPart:
        if placed is None:
            none = torch.zeros(0, dtype=torch.float64, device=self.device)
            return DomainPart(0.0, none, none.new_zeros(len(share.atoms), 3), np.zeros((3, 3)))
        if placed.done is not None:
            torch.cuda.current_stream(self.device).wait_event(placed.done)
        try:
            energy, energies, forces, virial = self.step.on_device(cell)
        except AtomsTogether as error:  # by the numbers of the whole structure
            raise AtomsTogether(*sorted(int(share.atoms[atom]) for atom in error.args)) from None
        return DomainPart(energy, energies, forces, virial, float(placed.farthest) <= division.allowed(cell)[1])

    def _take(
        self, batch: Batch, division: Division, share: Share, positions: NDArray[np.float64], cell: NDArray[np.float64]
    ) -> None:
        self.share = None
        given = batch.partial_charges
        self.step.assign(
            positions[share.atoms] + share.shifts @ cell, batch.atomic_numbers.numpy()[share.atoms], share.num_owned,
            cell, num_total=batch.num_atoms, hops=share.hops,
            partial_charges=None if given is None else given[torch.from_numpy(share.atoms)],
        )  # fmt: skip
        self._atoms, self.share = _AtomsOnDevice(share, division, self.device), share


class DomainSums:
    """Sums of vectors of the atoms of domains, on one device and in a fixed order."""

    def __init__(self, division: Division, device: torch.device) -> None:
        self.device, self.count = device, len(division.positions)
        self._waits = device.type == "cuda"  # for copies, by its stream; a CPU reads at once
        self.owned = [torch.from_numpy(share.atoms[: share.num_owned]).to(device) for share in division.shares]
        self.ghosts = [self._rounds(share) for share in division.shares]

    def _rounds(self, share: Share) -> list[tuple[Tensor, Tensor]]:
        """(rows of a part, their atoms), in each of which an atom occurs once: sums then have an order on a GPU too."""
        ghosts = share.atoms[share.num_owned :]
        order = np.argsort(ghosts, kind="stable")
        ascending = ghosts[order]
        first = np.flatnonzero(np.diff(ascending, prepend=-1))
        number = np.arange(len(ghosts)) - np.repeat(first, np.diff(first, append=len(ghosts)))
        found = []
        for k in range(int(number.max(initial=-1)) + 1):
            rows = np.sort(order[number == k])
            found.append((rows + share.num_owned, ghosts[rows]))
        return [(torch.from_numpy(r).to(self.device), torch.from_numpy(a).to(self.device)) for r, a in found]

    def forces(self, parts: list[Tensor]) -> Tensor:
        """[N,3]: of each atom, those of its copies [M,3] in all parts."""
        given = [part.to(self.device, non_blocking=self._waits) for part in parts]
        whole = torch.empty(self.count, 3, dtype=torch.float64, device=self.device)
        for owned, part in zip(self.owned, given, strict=True):  # each atom has one owner
            whole.index_copy_(0, owned, part[: len(owned)])
        for rounds, part in zip(self.ghosts, given, strict=True):
            for rows, atoms in rounds:
                whole.index_add_(0, atoms, part[rows])
        return whole

    def energies(self, parts: list[Tensor]) -> Tensor:
        """[N], of owned atoms [owned] of all parts."""
        whole = torch.empty(self.count, dtype=torch.float64, device=self.device)
        for owned, part in zip(self.owned, parts, strict=True):
            whole.index_copy_(0, owned, part.to(self.device, non_blocking=self._waits))
        return whole
