"""Second derivatives of the energy: on the CPU by differences of forces in C, else by differentiating the exact model.

The differences are central, of forces in float64. Copies of the structure with one atom displaced each are evaluated in
batches.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from torchmdx.engines.choose import choose_engine, plan_for
from torchmdx.engines.pairs.energy import pairwise_energy
from torchmdx.engines.plan import Network
from torchmdx.engines.plan.decide import COMPILED
from torchmdx.evaluation.properties.pairs import Pairs
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Lattice
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.priors.d3 import D3
from torchmdx.models.priors.zbl import ZBL
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.system import Batch, System

STEP = 1e-4  # Å: of the differences; their error is about 1e-7 of the largest derivative
MOST_ATOMS = 1024  # of a batch of copies


@runs_on(device_of_potential)
@isolated
def hessian(potential: Potential | Ensemble, system: System, atoms: Sequence[int] | None = None) -> Tensor:
    """Second derivatives [3n,3n] of the energy, eV/Å², float64, for n atoms: x, y, z of the first, of the second, ...

    ::

        H_ia,jb = ∂²E / ∂r_ia ∂r_jb

    Args:
        atoms: Indices of the atoms i and j, the others are kept fixed; None: all. The matrix is symmetric, and in a
            crystal every image of an atom moves with it (wave vector zero). For an ensemble it is the mean. It takes
            two evaluations for each row on a CPU, in float64 whatever the dtype of the potential; elsewhere, and for
            networks without C code and priors whose forces have a step at a cutoff, one backward pass. Raises as
            `Pairs.of`.
    """
    if not system.num_atoms:
        return torch.zeros(0, 0, dtype=torch.float64, device=potential.device)
    pairs = Pairs.of(potential, system)
    chosen = torch.as_tensor(range(system.num_atoms) if atoms is None else atoms, dtype=torch.int64, device="cpu")
    components = (3 * chosen[:, None] + torch.arange(3, device="cpu")).flatten().to(potential.device)
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    found = torch.stack([_of_member(member, system, pairs, components) for member in members]).mean(0)
    return (found + found.T) / 2


def _of_member(potential: Potential, system: System, pairs: Pairs, components: Tensor) -> Tensor:
    smooth = all(_is_smooth(prior, bool(system.pbc.any())) for prior in potential.priors)
    if potential.device.type == "cpu" and smooth and len(components):
        wide = copy.deepcopy(potential).double().requires_grad_(False)
        copies = max(1, min(2 * len(components), MOST_ATOMS // system.num_atoms))
        batch = Batch.from_systems([system] * copies).to(dtype=torch.float64)
        if plan_for(wide, batch, stress=False, precision="float64").engine == COMPILED:
            return _differences(wide, batch, components)
    return _rows(potential, pairs, components)


def _is_smooth(prior: nn.Module, periodic: bool) -> bool:
    """Whether the forces of a prior are known to have no step at its cutoff, which differences take for a slope.

    D2 ends sharply, a reaction field with a small step in the force, and so does the direct part of an Ewald sum.
    """
    if type(prior) is Coulomb:
        return prior.cutoff(periodic) == 0
    return type(prior) in (ZBL, D3)


def _differences(potential: Potential, batch: Batch, components: Tensor) -> Tensor:
    """As `_rows`, by differences of forces. batch: copies of the structure."""
    engine, _ = choose_engine(potential, batch, stress=False, precision="float64")
    # One list for all displacements: edges beyond the cutoff contribute nothing.
    edges = EdgeSearch(potential.search_cutoff(batch) + STEP).allocate(batch)
    engine.reserve(edges.capacity)
    copies, at_rest = batch.num_systems, batch.positions.view(batch.num_systems, -1)
    found = at_rest.new_zeros(len(components), len(components))
    moves = [(row, sign) for row in range(len(components)) for sign in (1, -1)]
    for first in range(0, len(moves), copies):
        some = moves[first : first + copies]
        positions = at_rest.clone()
        for k, (row, sign) in enumerate(some):
            positions[k, components[row]] += sign * STEP
        forces = engine.run(positions.view(-1, 3), batch.cell, edges).forces.reshape(copies, -1)[:, components]
        for k, (row, sign) in enumerate(some):
            found[row] -= sign * forces[k] / (2 * STEP)
    return found


def _rows(potential: Potential, pairs: Pairs, components: Tensor) -> Tensor:
    """Derivatives of components [n] of the gradient with respect to the same components of positions, [n,n]."""
    with torch.enable_grad():
        positions = pairs.batch.positions.detach().requires_grad_()
        (gradient,) = _derivative(_energy(potential, pairs, positions), positions, create_graph=True)
        chosen = gradient.flatten().index_select(0, components)
        rows = [_derivative(each, positions)[0].flatten().index_select(0, components) for each in chosen]
    return torch.stack(rows).detach() if rows else positions.new_zeros(0, 0)


def _energy(potential: Potential, pairs: Pairs, positions: Tensor) -> Tensor:
    """The energy [1], from the network on pairs, or for other models from the reference."""
    batch, edges = pairs.batch, pairs.edges
    if Network.of(potential).has_pairs:
        return pairwise_energy(potential, batch, edges, pairs.reverse, positions)[0]
    dtype = potential.dtype
    vectors = edges.vectors(positions, batch.cell, batch.system_index).to(dtype)
    deformed = positions.to(dtype)
    rounded = replace(batch, positions=deformed.detach(), cell=batch.cell.to(dtype))
    return potential.outputs(rounded, edges, vectors, deformed, Lattice(positions, batch.cell))[0]


def _derivative(value: Tensor, positions: Tensor, *, create_graph: bool = False) -> tuple[Tensor, ...]:
    """The gradient in a tuple; zero where the value does not depend on positions, as of a single atom."""
    if not value.requires_grad:
        return (torch.zeros_like(positions),)
    return torch.autograd.grad(
        value.sum(), positions, create_graph=create_graph, retain_graph=True, materialize_grads=True, allow_unused=True
    )
