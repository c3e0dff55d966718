"""DomainStep: energy, forces and virial of a process's part of a system, for codes with domain decomposition."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.atom_virials import edge_virials, flux_virials
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.domain_reach import members_of, num_hops, reach, why_not
from torchmdx.structures.cell import volume
from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch
from torchmdx.structures.system_fields import LAST_ELEMENT

# Padding atoms are this far from others and from each other, in cutoffs: atoms move until the next `assign`.
PADDING_SPACING = 2.0


@dataclass(frozen=True, eq=False)
class DomainResult:
    """energy eV of the owned atoms, and energies [owned]; forces [N,3] eV/Å of all atoms; virial [3,3] eV = ∂E/∂strain.

    Arrays are views of the step's buffers, valid until its next call.
    """

    energy: float
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]
    virial: NDArray[np.float64]


class DomainStep:
    """Evaluates the atoms that a process owns, with copies of the atoms around them (ghosts), as a `CapturedStep`.

    Example::

        step = DomainStep(potential, pbc=(False, True, True))
        step.assign(positions, numbers, num_owned, cell, num_total=96)  # after atoms have changed hands
        result = step(positions, cell)

    Summed over all processes, energies and virials are those of the whole system, and so are forces, after those on
    ghosts have been added to those on the atoms they are copies of.

    Ghosts must reach `reach` Å from the owned atoms in every direction in which the system continues beyond the domain.
    Along a direction that is not divided among processes, pbc may be True instead: then there are no ghosts there.

    Atoms are padded to a capacity, so that one CUDA graph serves while their number changes; `num_growths` counts how
    often it grew. capacity: atoms to begin with. mode, precision, audit_every: as for CapturedStep. charge: of the
    whole system. virials: False omits virials, which are zero then.

    A potential that cannot be divided (`why_not`) needs a domain that owns all atoms.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        pbc: Sequence[bool],
        *,
        capacity: int = 0,
        charge: float = 0.0,
        mode: str = "auto",
        precision: str | None = None,
        audit_every: int = 0,
        virials: bool = True,
    ) -> None:
        self.undivided = why_not(potential)
        if capacity < 0:
            raise ValueError(f"capacity must be >= 0 atoms, got {capacity}")
        self.potential = copy.deepcopy(potential)
        members = members_of(self.potential)
        # A potential's shift belongs to the whole system: each atom gets its part of it here.
        self.shift = sum(float(member.shift) for member in members) / len(members)
        for member in members:
            member.shift.zero_()
        self.pbc = torch.tensor([bool(periodic) for periodic in pbc], device="cpu")
        self.capacity, self.charge, self.mode = capacity, charge, mode
        self.precision, self.audit_every, self.virials = precision, audit_every, virials
        self.num_hops, self.reach = num_hops(potential), reach(potential)
        self.num_owned = self.num_atoms = self.num_growths = self.num_evaluations = 0
        self.step: CapturedStep | None = None
        self._share = 0.0
        self._atoms: tuple[NDArray[Any], NDArray[np.int32]] | None = None

    def assign(
        self, positions: Any, numbers: Any, num_owned: int, cell: Any, *, num_total: int, hops: Any = None,
        partial_charges: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Takes other atoms: positions [N,3] Å, atomic numbers [N], and cell [3,3] Å.

        The first num_owned atoms are owned. num_total: atoms of the whole system. hops [N]: ascending, 0 for owned
        atoms; for ghosts a lower bound, at least 1, of the steps between neighbours from an owned atom to them, until
        the next `assign`. With them, layers evaluate only atoms that matter; None: 1 for all ghosts. partial_charges
        [N], e: for potentials that take them as given.

        Raises:
            ValueError: For ghosts, or a part of the atoms, with a potential that cannot be divided.
        """
        positions, numbers = np.asarray(positions, dtype=np.float64), np.asarray(numbers)
        count = len(numbers)
        hops = (np.arange(count) >= num_owned).astype(np.int32) if hops is None else np.asarray(hops, dtype=np.int32)
        _require_atoms(positions, numbers, hops, num_owned, num_total)
        if self.undivided is not None and not num_owned == count == num_total:
            raise ValueError(
                "this potential can't be divided among processes, and needs one that owns all atoms: "
                f"{self.undivided}; got {num_owned} of {num_total} atoms, and {count - num_owned} copies"
            )
        self.num_atoms, self.num_owned, self._atoms = count, num_owned, (numbers, hops)
        self._share = self.shift / max(1, num_total)
        if num_owned == 0:
            return
        # Padding atoms would belong to a whole system, and have no place in a box that is periodic in all directions.
        exact = self.undivided is not None or bool(self.pbc.all())
        if count > self.capacity or (exact and count < self.capacity):
            self.num_growths += self.step is not None
            self.step, self.capacity = None, self._capacity_for(count, num_owned)
        batch = self._batch(positions, numbers, hops, np.asarray(cell, dtype=np.float64))
        if partial_charges is not None and self.undivided is not None:  # others have no use for them
            batch = replace(batch, partial_charges=partial_charges)
        if self.step is None:
            self.step = CapturedStep(
                self.potential, batch, mode=self.mode, stress=self.virials, energies=True,
                precision=self.precision, audit_every=self.audit_every,
            )  # fmt: skip
        else:
            self.step.assign(batch)

    def __call__(self, positions: Any = None, cell: Any = None) -> DomainResult:
        """Evaluates at positions [N,3] Å and cell [3,3] Å; None: those in `inputs`, and the last cell.

        Raises what CapturedStep raises; RuntimeError before the first `assign`.
        """
        if self.num_owned == 0:
            return DomainResult(0.0, np.zeros(0), np.zeros((self.num_atoms, 3)), np.zeros((3, 3)))
        step = self._assigned()
        if positions is not None:
            given = np.asarray(positions, dtype=np.float64)
            if given.shape != (self.num_atoms, 3):
                raise ValueError(f"positions must have shape {[self.num_atoms, 3]}, got {list(given.shape)}")
            self.inputs[:] = given
        result = step(step.buffers.host_inputs["positions"], cell, copy=False)
        self.num_evaluations += 1
        energies = result.energies[: self.num_owned]
        energies += self._share
        virial = self._virial(result.stress, step.buffers.host_inputs["cell"])
        return DomainResult(self.owned_energy(), energies, result.forces[: self.num_atoms], virial)

    def on_device(self, cell: Any = None) -> tuple[float, Tensor, Tensor, NDArray[np.float64]]:
        """As a call at the positions in `device_inputs`: energy, energies and forces on the device, and the virial.

        The tensors are views of the step's buffers, valid until its next call.
        """
        step = self._assigned()
        result = step(step.buffers.inputs["positions"], cell, copy=False)
        self.num_evaluations += 1
        box = step.buffers.inputs["cell"].cpu() if cell is None else torch.as_tensor(cell, dtype=torch.float64)
        virial = self._virial(result.stress, box)
        forces = torch.as_tensor(result.forces)[: self.num_atoms]
        return self.owned_energy(), self.owned_energies(torch.as_tensor(result.energies)), forces, virial

    @staticmethod
    def _virial(stress: Any, cell: Tensor) -> NDArray[np.float64]:
        """From the stress [1,3,3] of an evaluation, None if there is none, and its cell."""
        return np.zeros((3, 3)) if stress is None else torch.as_tensor(stress[0]).cpu().numpy() * float(volume(cell))

    def owned_energy(self) -> float:
        """Of the last evaluation, which the host has read."""
        return float(self._assigned().buffers.host_arrays["energy"][0]) + self._share * self.num_owned

    def owned_energies(self, energies: Tensor) -> Tensor:
        """Those [owned] of a whole system, from the network's [M]."""
        return energies[: self.num_owned] + self._share

    def atom_virials(self, *, flux: bool = False) -> NDArray[np.float64]:
        """Virials [N,3,3] eV of all atoms, ghosts included, at the positions and cell of the last evaluation.

        Summed over all processes, they are ∂E/∂strain (of `flux`, its transpose is the same). An evaluation of its own,
        by autograd, which takes much longer than a step.

        Args:
            flux: False for `edge_virials`, True for `flux_virials`.

        Raises:
            ValueError: For a potential that cannot be divided (`why_not`): its energy is no sum over edges.
        """
        if self.undivided is not None:
            raise ValueError(
                f"virials of atoms need energies of atoms that depend on their surroundings alone: {self.undivided}"
            )
        if self.num_owned == 0:
            return np.zeros((self.num_atoms, 3, 3))
        step = self._assigned()
        assert self._atoms is not None
        domain = self._domain(self.inputs.copy(), *self._atoms, step.buffers.host_inputs["cell"][0].double().numpy())
        assert isinstance(domain, Domain)
        found = flux_virials(self.potential, domain, self.reach) if flux else edge_virials(self.potential, domain)
        return found.cpu().numpy()

    @property
    def inputs(self) -> NDArray[np.float64]:
        """The step's own memory for positions [N,3]; they may be written here instead of given to a call."""
        return self._assigned().buffers.host_inputs["positions"].numpy()[: self.num_atoms]

    @property
    def device_inputs(self) -> Tensor:
        """The step's own memory for positions [N,3] on its device."""
        return self._assigned().buffers.inputs["positions"][: self.num_atoms]

    def _assigned(self) -> CapturedStep:
        if self.step is None:
            raise RuntimeError("assign must be called before an evaluation")
        return self.step

    def _capacity_for(self, count: int, num_owned: int) -> int:
        """Room for fluctuations of the number of ghosts. Padding atoms need a direction that is not periodic."""
        if bool(self.pbc.all()) or count == num_owned:
            return count
        return -(-(count + count // 32 + 4 * math.isqrt(count)) // 32) * 32

    def _batch(
        self, positions: NDArray[np.float64], numbers: NDArray[Any], hops: NDArray[np.int32], cell: NDArray[np.float64]
    ) -> Batch:
        missing, levels = self.capacity - len(numbers), self.num_hops + 1
        if missing:
            positions = np.concatenate([positions, self._padding(missing, positions, cell)])
            numbers = np.concatenate([numbers, np.full(missing, numbers[0])])
            hops = np.concatenate([hops, np.full(missing, levels, dtype=np.int32)])
        return self._domain(positions, numbers, hops, cell)

    def _domain(
        self, positions: NDArray[np.float64], numbers: NDArray[Any], hops: NDArray[np.int32], cell: NDArray[np.float64]
    ) -> Batch:
        """A `Domain`; of a potential that cannot be divided, a whole system."""
        levels = self.num_hops + 1
        within = np.searchsorted(hops, np.arange(levels), side="right")
        whole: dict[str, Any] = dict(
            positions=torch.tensor(positions, device="cpu"),
            atomic_numbers=torch.tensor(numbers, dtype=torch.int64, device="cpu"),
            system_index=torch.zeros(len(numbers), dtype=torch.int64, device="cpu"),
            cell=torch.tensor(cell, device="cpu")[None],
            pbc=self.pbc[None],
            charge=torch.tensor([self.charge], dtype=torch.float64, device="cpu"),
        )
        if self.undivided is not None:
            return Batch(**whole)
        hops_of = torch.tensor(np.minimum(hops, levels), dtype=torch.int32, device="cpu")
        return Domain(**whole, hops=hops_of, within=torch.tensor(within, dtype=torch.int32, device="cpu"))

    def _padding(self, count: int, positions: NDArray[np.float64], cell: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions [count,3] beyond all others along a direction without periodicity, in layers across it."""
        inverse = np.linalg.inv(cell)
        spacing = PADDING_SPACING * self.potential.cutoff * np.linalg.norm(inverse, axis=0)  # in cell vectors
        along = int(np.flatnonzero(~self.pbc.numpy())[0])
        across = [axis for axis in range(3) if axis != along]
        # Across the direction they stay inside the cell, which may be periodic there.
        grid = [max(1, math.floor(1 / spacing[axis])) for axis in across]
        number, fractional = np.arange(count), np.zeros((count, 3))
        fractional[:, across[0]] = number % grid[0] * spacing[across[0]]
        fractional[:, across[1]] = number // grid[0] % grid[1] * spacing[across[1]]
        highest = (positions @ inverse)[:, along].max()
        fractional[:, along] = highest + (1 + number // (grid[0] * grid[1])) * spacing[along]
        return fractional @ cell


def _require_atoms(
    positions: NDArray[np.float64], numbers: NDArray[Any], hops: NDArray[np.int32], num_owned: int, num_total: int
) -> None:
    count = len(numbers)
    if positions.shape != (count, 3) or hops.shape != (count,):
        raise ValueError(
            f"positions must have shape {[count, 3]} and hops {[count]}, as atomic numbers have, got "
            f"{list(positions.shape)} and {list(hops.shape)}"
        )
    if not 0 <= num_owned <= min(count, num_total):
        raise ValueError(f"num_owned must be from 0 to {min(count, num_total)}, got {num_owned}")
    if count and not (numbers.min() >= 1 and numbers.max() <= LAST_ELEMENT):
        raise ValueError(f"atomic numbers must be from 1 to {LAST_ELEMENT}, got {numbers.min()} to {numbers.max()}")
    if (hops[:num_owned] != 0).any() or (hops[num_owned:] < 1).any() or (np.diff(hops) < 0).any():
        raise ValueError("hops must be ascending, 0 for owned atoms and at least 1 for ghosts, got other values")
