"""Second derivatives of the energy, by differentiating the forces of the exact model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.engines.pairs.energy import pairwise_energy
from torchmdx.engines.plan import Network
from torchmdx.evaluation.properties.pairs import Pairs
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Lattice
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.system import System


@runs_on(device_of_potential)
@isolated
def hessian(potential: Potential | Ensemble, system: System, atoms: Sequence[int] | None = None) -> Tensor:
    """Second derivatives [3n,3n] of the energy, eV/Å², float64, for n atoms: x, y, z of the first, of the second, ...

    ::

        H_ia,jb = ∂²E / ∂r_ia ∂r_jb

    Args:
        atoms: Indices of the atoms i and j, the others are kept fixed; None: all. The matrix is symmetric, and in a
            crystal every image of an atom moves with it (wave vector zero). It takes one backward pass for each of its
            rows. For an ensemble it is the mean. Raises as `Pairs.of`.
    """
    if not system.num_atoms:
        return torch.zeros(0, 0, dtype=torch.float64, device=potential.device)
    pairs = Pairs.of(potential, system)
    chosen = torch.as_tensor(range(system.num_atoms) if atoms is None else atoms, dtype=torch.int64, device="cpu")
    components = (3 * chosen[:, None] + torch.arange(3, device="cpu")).flatten().to(potential.device)
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    found = torch.stack([_rows(member, pairs, components) for member in members]).mean(0)
    return (found + found.T) / 2


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
