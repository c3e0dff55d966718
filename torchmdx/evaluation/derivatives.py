"""From the energy to forces and stress, in one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchmdx.evaluation.blocks import bounded
from torchmdx.models.ensemble import Ensemble, mean_of, spread_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Lattice
from torchmdx.models.uncertainty import last_layer_inputs
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.images import require_countable
from torchmdx.runtime.cpu_threads import limited_to, num_threads
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.fork_guard import check_fork
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.cell import per_volume, recentre, strained_cell, strained_positions
from torchmdx.structures.domain import of_owned
from torchmdx.structures.system import Batch, System

# Atoms closer than this, Å, count as coincident: in float32 their direction is only rounding error. The engines in C
# and CUDA C++ have the same number.
SAME_PLACE = 1e-4


class AtomsTogether(ValueError):
    """Two atoms coincide, or an atom and its own image; `args` are their numbers."""

    def __str__(self) -> str:
        first, second = self.args
        return f"atoms must not coincide, got atoms {first} and {second} at the same position (within {SAME_PLACE:g} Å)"


@dataclass(frozen=True, eq=False)
class Result:
    """energy [S] eV and energies [N] eV (float64), and if requested forces [N,3] eV/Å and stress [S,3,3] eV/Å³.

    stress is ∂E/∂strain / volume, symmetric, positive under tension (ASE's sign), and NaN for systems whose cell has no
    volume (molecules, slabs without a third lattice vector). charges [N] e and dipoles [S,3] e Å, float64, are given
    by potentials that predict charges; dipoles are relative to the centre of nuclear charge, and NaN for periodic
    systems. For an ensemble all these are means, and energy_spread [S] eV and force_spread [N] eV/Å, float64, are the
    standard deviations of its members (models/ensemble.py). energy_uncertainty [S] and energies_uncertainty [N], eV,
    float64, are given by a single potential that knows its uncertainty, with what they are made of: last_inputs [N,D],
    the inputs of the last layer (models/uncertainty.py).
    """

    energy: Tensor
    energies: Tensor
    forces: Tensor | None = None
    stress: Tensor | None = None
    charges: Tensor | None = None
    dipoles: Tensor | None = None
    energy_spread: Tensor | None = None
    force_spread: Tensor | None = None
    energy_uncertainty: Tensor | None = None
    energies_uncertainty: Tensor | None = None
    last_inputs: Tensor | None = None


@runs_on(device_of_potential)
@isolated
def evaluate(
    potential: Potential | Ensemble,
    batch: Batch | System,
    edges: Edges | None = None,
    *,
    forces: bool = True,
    stress: bool = False,
    create_graph: bool = False,
) -> Result:
    """Energy of every system of a batch, with forces and stress.

    Args:
        edges: A list for this batch with a cutoff of at least `potential.search_cutoff(batch)`; None: searched here.
        create_graph: Keeps the graph, so that a loss on forces or stress can be differentiated.

    Raises:
        ValueError: For unsupported elements, an overflowed list, coincident atoms, or a cell that cannot be searched
            (CapacityError).
    """
    check_fork(potential.device)
    batch = Batch.of(batch)
    if batch.positions.is_inference():
        batch = batch.clone()
    if edges is None:
        require_countable(batch.cell, batch.pbc, potential.search_cutoff(batch))
        near = recentre(batch.positions, batch.cell, batch.pbc, batch.system_index)
        batch = replace(batch, positions=near).to(potential.device, potential.dtype)
        edges = brute_force(batch, potential.search_cutoff(batch))
    batch = _centred(batch.to(potential.device), potential.dtype)
    potential.require_elements(batch.atomic_numbers)
    if bool(edges.overflow):
        raise ValueError(f"edges needs room for {int(edges.needed)} edges, its capacity is {edges.capacity}")
    require_apart(edges, edges.vectors(batch.positions.detach(), batch.cell.detach(), batch.system_index))
    threads = num_threads(edges.capacity, exact=True) if potential.device.type == "cpu" else None
    with limited_to(threads):
        result = differentiate(potential, batch, edges, forces=forces, stress=stress, create_graph=create_graph)
    found, tension, dtype = result.forces, result.stress, potential.dtype
    return replace(
        with_uncertainties(result, potential, batch),
        forces=None if found is None else found.to(dtype),
        stress=None if tension is None else tension.to(dtype),
    )


def _centred(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch for a potential of this dtype; wider positions and cells stay wide, with every system at the origin.

    Differences of positions are then taken before rounding, and positions that priors round are small. Images stay as
    they are, since a list of edges may refer to them.
    """
    narrow = batch.to(dtype=dtype)
    if torch.promote_types(batch.positions.dtype, dtype) == dtype:
        return narrow
    positions, index = batch.positions, batch.system_index
    sums = positions.new_zeros(batch.num_systems, 3).index_add(0, index, positions.detach())
    centres = sums / batch.counts().clamp(min=1)[:, None]
    return replace(narrow, positions=positions - centres.index_select(0, index), cell=batch.cell)


@runs_on(device_of_potential)
def differentiate(
    potential: Potential | Ensemble,
    batch: Batch,
    edges: Edges,
    *,
    forces: bool = True,
    stress: bool = False,
    create_graph: bool = False,
) -> Result:
    """`evaluate` without checks: the batch is on the potential's device, and nothing is read on the host.

    Positions and cell may have a wider dtype than the potential: differences of positions are taken before rounding.
    """
    if isinstance(potential, Ensemble):
        options = dict(forces=forces, stress=stress, create_graph=create_graph)
        results = [differentiate(member, batch, edges, **options) for member in potential]
        return _combined(results, potential.spread_factors)
    potential = bounded(potential, edges, create_graph=create_graph)
    seen: list[Tensor] = []

    def energy(positions: Tensor, strain: Tensor | None) -> EnergyParts:
        vectors = edges.vectors(positions, batch.cell, batch.system_index)
        if strain is not None:
            vectors = strained(vectors, strain, edges, batch.system_index)
        deformed = positions if strain is None else strained_positions(positions, strain, batch.system_index)
        rounded, dtype, lattice = batch, potential.dtype, Lattice(deformed, strained_cell(batch.cell, strain))
        if vectors.dtype != dtype:
            vectors, deformed = vectors.to(dtype), deformed.to(dtype)
            rounded = replace(batch, positions=deformed.detach(), cell=batch.cell.to(dtype))
        return potential.outputs(rounded, edges, vectors, deformed, lattice, seen.append)

    with torch.set_grad_enabled(forces or stress or create_graph or torch.is_grad_enabled()):
        positions = batch.positions
        if forces and not positions.requires_grad:
            positions = positions.detach().requires_grad_()
        found = differentiate_energy(energy, batch, positions, forces=forces, stress=stress, create_graph=create_graph)
    return with_last_inputs(found, potential, batch, seen[-1])


def with_last_inputs(found: Result, potential: Potential, batch: Batch, features: Tensor) -> Result:
    """A result with the inputs of the last layer, for a potential that knows its uncertainty. features [N,C]."""
    if potential.uncertainty is None:
        return found
    inputs = last_layer_inputs(potential, features)
    return replace(found, last_inputs=of_owned(inputs.T, batch).T)


def with_uncertainties(found: Result, potential: Potential | Ensemble, batch: Batch) -> Result:
    """A result with the uncertainties of a single potential that knows them."""
    if isinstance(potential, Ensemble) or potential.uncertainty is None or found.last_inputs is None:
        return found
    of_systems, of_atoms = potential.uncertainty.of(found.last_inputs, batch.system_index, batch.num_systems)
    return replace(found, energy_uncertainty=of_systems, energies_uncertainty=of_atoms)


# Energies [S] and of atoms [N], eV, and partial charges [N], e, or None; all float64.
EnergyParts = tuple[Tensor, Tensor, Tensor | None]


def differentiate_energy(
    energy_of: Callable[[Tensor, Tensor | None], EnergyParts],
    batch: Batch,
    positions: Tensor,
    *,
    forces: bool,
    stress: bool,
    create_graph: bool,
    dipoles_of: Callable[[Tensor, Tensor, Batch], Tensor] | None = None,
) -> Result:
    """The result of an energy that is a function of positions [N,3] and of a strain [S,3,3], None without stress.

    Called with gradients enabled as they are needed; for forces positions require a gradient. dipoles_of: another way
    to compute `dipole_moments`.
    """
    strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_() if stress else None
    energy, energies, charges = energy_of(positions, strain)
    slope, virial = _gradients(energy, positions if forces else None, strain, create_graph)
    dipoles = None if charges is None else (dipoles_of or dipole_moments)(charges, positions, batch)
    if not create_graph:
        energy, energies = energy.detach(), energies.detach()
        charges, dipoles = (None if value is None else value.detach() for value in (charges, dipoles))
    return Result(
        energy=energy,
        energies=energies,
        forces=None if slope is None else -slope,
        stress=None if virial is None else per_volume(virial, batch.cell),
        charges=charges,
        dipoles=dipoles,
    )


def _combined(results: list[Result], factors: tuple[float, float]) -> Result:
    """Mean, in the dtypes of the members, and spread, times its factor, of the results of an ensemble's members."""

    def mean(name: str) -> Tensor | None:
        values = [getattr(result, name) for result in results]
        return None if any(v is None for v in values) else mean_of(torch.stack(values)).to(values[0].dtype)

    energy, energies = mean("energy"), mean("energies")
    assert energy is not None
    assert energies is not None
    forces = [result.forces.detach() for result in results if result.forces is not None]
    return Result(
        energy=energy,
        energies=energies,
        forces=mean("forces"),
        stress=mean("stress"),
        charges=mean("charges"),
        dipoles=mean("dipoles"),
        energy_spread=factors[0] * spread_of(torch.stack([result.energy.detach() for result in results])),
        force_spread=factors[1] * spread_of(torch.stack(forces), vectors=True) if forces else None,
    )


def dipole_moments(charges: Tensor, positions: Tensor, batch: Batch) -> Tensor:
    """Dipole moments [S,3], e Å, relative to the centre of nuclear charge; NaN for systems with periodic directions."""
    positions, numbers = positions.double(), batch.atomic_numbers.double()
    columns = torch.cat([numbers[:, None] * positions, numbers[:, None]], dim=-1)
    sums = columns.new_zeros(batch.num_systems, 4).index_add(0, batch.system_index, columns)
    centre = sums[:, :3] / sums[:, 3:4].clamp(min=1)
    relative = positions - centre.index_select(0, batch.system_index)
    moments = torch.zeros_like(centre).index_add(0, batch.system_index, charges[:, None] * relative)
    return torch.where(batch.pbc.any(-1)[:, None], torch.nan, moments)


def strained(vectors: Tensor, strain: Tensor, edges: Edges, system_index: Tensor) -> Tensor:
    """Vectors [E,3] of structures deformed by the symmetric part of strain [S,3,3].

    Positions and cell x become x (1 + ε). Vectors v are linear in them and become v (1 + ε): the same strain, without
    cancellation of coordinates far from the origin.
    """
    if edges.num_atoms == 0:
        return vectors
    symmetric = (strain + strain.transpose(1, 2)) / 2
    edge_strain = symmetric.index_select(0, system_index.index_select(0, edges.target))
    return vectors + torch.einsum("ei,eij->ej", vectors, edge_strain)


def require_apart(edges: Edges, vectors: Tensor, order: Tensor | None = None) -> None:
    """Raises AtomsTogether if an edge is shorter than SAME_PLACE.

    Args:
        order ([N]): The caller's number of each atom, if it differs from the list's.
    """
    together = are_together(vectors)
    if together.any():
        edge = int(together.nonzero()[0])
        atoms = (edges.target[edge], edges.source[edge])
        raise AtomsTogether(*sorted(int(atom if order is None else order[atom]) for atom in atoms))


def are_together(vectors: Tensor) -> Tensor:
    """Whether edges with these vectors [E,3], Å, are shorter than SAME_PLACE, [E]."""
    return torch.linalg.vector_norm(vectors.detach(), dim=-1) < SAME_PLACE


def _gradients(
    energy: Tensor, positions: Tensor | None, strain: Tensor | None, create_graph: bool
) -> tuple[Tensor | None, Tensor | None]:
    """∂E/∂positions and ∂E/∂strain, each None without its argument; zero if the energy does not depend on it."""
    inputs = [x for x in (positions, strain) if x is not None]
    if not inputs:
        return None, None
    if energy.requires_grad:
        found = torch.autograd.grad(
            energy.sum(), inputs, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
    elif energy.is_inference():
        raise RuntimeError("forces and stress need gradients, got an energy made under torch.inference_mode")
    else:  # a batch without atoms
        found = tuple(torch.zeros_like(x) for x in inputs)
    remaining = iter(found)
    return None if positions is None else next(remaining), None if strain is None else next(remaining)
