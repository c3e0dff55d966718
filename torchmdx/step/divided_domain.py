"""A device's part of a divided structure: its atoms, the positions that go in, and results that stay on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.evaluation.derivatives import AtomsTogether
from torchmdx.runtime.device_guard import on_device
from torchmdx.step.division import Division, Share
from torchmdx.step.domain_step import DomainStep
from torchmdx.step.launched import landed, launch, may_launch
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
        before = self.places
        if deform is not None:  # nothing waits for its copy, which torch makes of such memory at once
            before = before @ torch.from_numpy(deform).to(before.device, non_blocking=True)
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
        self._results: tuple[Tensor, Tensor] | None = None
        # What the host reads: the stress, and how far atoms have moved.
        pinned: dict[str, Any] = dict(dtype=torch.float64, device="cpu", pin_memory=device.type == "cuda")
        self._stress, self._farthest = torch.zeros(1, 3, 3, **pinned), torch.zeros((), **pinned)

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

    def _put(self, positions: Tensor, cell: NDArray[np.float64]) -> Tensor:
        """Writes the positions of the share's atoms, of all on the host, into the inputs of the step; these [M,3]."""
        assert self._atoms is not None
        places = self.step.device_inputs
        torch.index_select(positions.to(self.device, non_blocking=True), 0, self._atoms.atoms, out=places)
        return places.index_add_(0, self._atoms.moved, self._atoms.moves(cell))

    def _place(self, share: Share, positions: Tensor, cell: NDArray[np.float64], division: Division) -> _Placed | None:
        """Puts the share's atoms in place; None where there is nothing to do."""
        if not share.num_owned:
            return None
        assert self._atoms is not None
        with on_device(self.device):
            places = self._put(positions, cell)
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

    def may_launch(self, share: Share) -> bool:
        """Whether an evaluation is nothing but a replay of the step's graph."""
        return self.share is share and share.num_owned > 0 and may_launch(self.step.step)

    def launch(self, positions: Tensor, cell: NDArray[np.float64]) -> None:
        """Queues an evaluation at positions [N,3] on the host; waits for nothing."""
        assert self.step.step is not None
        with on_device(self.device):
            self._put(positions, cell)
            launch(self.step.step, cell)
        self.step.num_evaluations += 1

    def launched(self, deform: NDArray[np.float64] | None) -> tuple[Tensor, Tensor]:
        """Energies [owned] and forces [M,3] of what was launched; queues the rest of what `landed` reads.

        Args:
            deform: Of the cell since the division.
        """
        assert self.step.step is not None
        assert self._atoms is not None
        outputs = self.step.step.buffers.outputs
        with on_device(self.device):
            if "stress" in outputs:  # else it remains zero
                self._stress.copy_(outputs["stress"], non_blocking=True)
            self._farthest.copy_(self._atoms.farthest(self.step.device_inputs, deform), non_blocking=True)
            self._results = self.step.owned_energies(outputs["energies"]), outputs["forces"][: self.step.num_atoms]
        return self._results

    def landed(self, volume: float, allowed: float) -> DomainPart | None:
        """The results of what was launched, which is complete; None if the step itself has to evaluate again.

        Args:
            volume: Of the cell, Å³.
            allowed: How far atoms may have moved, Å.
        """
        assert self.step.step is not None
        assert self._results is not None
        if not landed(self.step.step):
            return None
        virial = self._stress[0].numpy() * volume
        return DomainPart(self.step.owned_energy(), *self._results, virial, float(self._farthest) <= allowed)

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
        sizes = [len(share.atoms) for share in division.shares]
        # The rows of all parts, one part after the other.
        self._rows = torch.empty(sum(sizes), 3, dtype=torch.float64, device=device)
        self._parts = self._rows.split(sizes)
        atoms = np.concatenate([share.atoms for share in division.shares])
        owned = np.concatenate([np.arange(len(share.atoms)) < share.num_owned for share in division.shares])
        own = np.empty(self.count, dtype=np.int64)  # each atom has one owner
        own[atoms[owned]] = np.flatnonzero(owned)
        self._own = torch.from_numpy(own).to(device)
        self.ghosts = self._rounds(np.flatnonzero(~owned), atoms[~owned])

    def _rounds(self, rows: NDArray[np.int64], ghosts: NDArray[np.int64]) -> list[tuple[Tensor, Tensor]]:
        """(rows, their atoms), in each of which an atom occurs once: sums then have an order on a GPU too."""
        order = np.argsort(ghosts, kind="stable")
        ascending = ghosts[order]
        first = np.flatnonzero(np.diff(ascending, prepend=-1))
        number = np.arange(len(ghosts)) - np.repeat(first, np.diff(first, append=len(ghosts)))
        found = []
        for k in range(int(number.max(initial=-1)) + 1):
            chosen = np.sort(order[number == k])
            found.append((rows[chosen], ghosts[chosen]))
        return [(torch.from_numpy(r).to(self.device), torch.from_numpy(a).to(self.device)) for r, a in found]

    def forces(self, parts: list[Tensor]) -> Tensor:
        """[N,3]: of each atom, those of its copies [M,3] in all parts."""
        for rows, part in zip(self._parts, parts, strict=True):
            rows.copy_(part, non_blocking=self._waits)
        whole = self._rows.index_select(0, self._own)
        for chosen, atoms in self.ghosts:
            whole.index_add_(0, atoms, self._rows.index_select(0, chosen))
        return whole

    def energies(self, parts: list[Tensor]) -> Tensor:
        """[N], of owned atoms [owned] of all parts."""
        whole = torch.empty(self.count, dtype=torch.float64, device=self.device)
        for owned, part in zip(self.owned, parts, strict=True):
            whole.index_copy_(0, owned, part.to(self.device, non_blocking=self._waits))
        return whole
