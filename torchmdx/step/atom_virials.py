"""Virials of atoms, which sum to ∂E/∂strain: for stress per atom, and for the heat flux."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.evaluation.blocks import in_blocks
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.neighbors.explicit import copies, search_explicitly
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.cell import complete
from torchmdx.structures.domain import Domain


@runs_on(device_of_potential)
@isolated
def edge_virials(potential: Potential | Ensemble, domain: Domain) -> Tensor:
    """W [N,3,3] eV, float64: each edge is divided equally between its two atoms.

    W_i = ½ Σ v_e ⊗ ∂E/∂v_e over the edges e from and to atom i, where E is the energy of the owned atoms. As the
    energy of an atom depends on edges between other atoms, this is one division among many that have the same sum.
    """
    return _mean([_edge_virials(member, domain) for member in members_of(potential)])


@runs_on(device_of_potential)
@isolated
def flux_virials(potential: Potential | Ensemble, domain: Domain, reach: float) -> Tensor:
    """W [N,3,3] eV, float64, with which -Σ_j W_j · v_j is the potential part of the heat flux.

    W_j = Σ_i (r_j - r_i) ⊗ ∂e_i/∂r_j, over all owned atoms i that depend on atom j (Langer et al., Phys. Rev. B 108,
    L100302, 2023), not symmetric. Σ_i r_i e_i, with r_i held constant, has the derivative Σ_i r_i ⊗ ∂e_i/∂r_j, so that
    three backward passes suffice once periodic images are atoms of their own.

    Args:
        reach: The distance up to which atoms influence the energy of an atom, Å.
    """
    whole, originals = _unfolded(domain, reach)
    found = _mean([_flux_virials(member, whole) for member in members_of(potential)])
    return found.new_zeros(domain.num_atoms, 3, 3).index_add(0, originals.to(found.device), found)


def _mean(found: list[Tensor]) -> Tensor:
    return torch.stack(found).mean(0)


def _energies(potential: Potential, domain: Domain) -> tuple[Tensor, Tensor, Domain, Tensor, Tensor]:
    """Energies [N] of owned atoms, leaves (positions, vectors), the domain on the device, and ends of its edges."""
    blocked = in_blocks(potential.network)
    potential = potential if blocked is None else potential.with_network(blocked)
    domain = domain.to(potential.device)
    edges = search_explicitly(domain, potential.search_cutoff(domain))
    vectors = edges.vectors(domain.positions, domain.cell, domain.system_index).to(potential.dtype).requires_grad_()
    rounded = domain.to(dtype=potential.dtype)
    _, energies = potential(rounded, edges, vectors, rounded.positions)
    return energies, vectors, domain, edges.target.long(), edges.source.long()


def _edge_virials(potential: Potential, domain: Domain) -> Tensor:
    with torch.enable_grad():
        energies, vectors, domain, target, source = _energies(potential, domain)
        (slope,) = torch.autograd.grad(energies.sum(), vectors)
    halves = 0.5 * vectors.detach().double()[:, :, None] * slope.double()[:, None, :]
    found = halves.new_zeros(domain.num_atoms, 3, 3)
    return found.index_add(0, target, halves).index_add(0, source, halves)


def _flux_virials(potential: Potential, domain: Domain) -> Tensor:
    with torch.enable_grad():
        energies, vectors, domain, target, source = _energies(potential, domain)
        centre = domain.positions[domain.hops == 0].mean(0)
        places = domain.positions - centre
        # ∂(Σ_i w_i e_i)/∂r [N,3] for the weights 1, x, y and z.
        slopes = []
        for weights in (torch.ones_like(places[:, 0]), *places.T):
            (slope,) = torch.autograd.grad((weights * energies).sum(), vectors, retain_graph=True)
            of_atoms = slope.new_zeros(domain.num_atoms, 3, dtype=torch.float64)
            slopes.append(of_atoms.index_add(0, source, slope.double()).index_add(0, target, -slope.double()))
    force_of_all, *weighted = slopes
    return places[:, :, None] * force_of_all[:, None, :] - torch.stack(weighted, 1)


def _unfolded(domain: Domain, reach: float) -> tuple[Domain, Tensor]:
    """The domain without periodic directions, with images up to `reach` Å away as ghosts, and their originals [M]."""
    inverse = torch.linalg.inv(complete(domain.cell, domain.pbc)[0])
    places, far = domain.positions @ inverse, reach * torch.linalg.vector_norm(inverse, dim=0)
    owned = places[domain.hops == 0]
    atoms, shifts = copies(places, domain.pbc[0], owned.min(0).values - far, owned.max(0).values + far)
    images = (shifts != 0).any(1)
    hops = torch.where(images, 1, domain.hops[atoms])
    order = torch.argsort(hops, stable=True)
    atoms, shifts, hops = atoms[order], shifts[order], hops[order]
    return replace(
        domain,
        positions=domain.positions[atoms] + shifts @ domain.cell[0],
        atomic_numbers=domain.atomic_numbers[atoms],
        system_index=torch.zeros_like(atoms),
        pbc=torch.zeros_like(domain.pbc),
        hops=hops.to(torch.int32),
    ), atoms
