"""Virials of atoms, which sum to ∂E/∂strain: for stress per atom, and for the heat flux."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.evaluation.block_plan import Extent
from torchmdx.evaluation.blocks import BlockedTensorNet
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.explicit import copies, search_explicitly
from torchmdx.runtime.cpu_threads import limited_to, num_threads
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.cell import complete
from torchmdx.structures.domain import Domain

# About as many; it decides how many threads an evaluation uses.
EDGES_OF_AN_ATOM = 50


@runs_on(device_of_potential)
@isolated
def edge_virials(potential: Potential | Ensemble, domain: Domain) -> Tensor:
    """W [N,3,3] eV, float64: each edge is divided equally between its two atoms.

    W_i = ½ Σ v_e ⊗ ∂E/∂v_e over the edges e from and to atom i, where E is the energy of the owned atoms. As the
    energy of an atom depends on edges between other atoms, this is one division among many that have the same sum.
    """
    with limited_to(_threads(potential, domain)):
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
    cutoff = max(float(member.config.cutoff) for member in members_of(potential))
    whole, originals = _unfolded(domain, reach, cutoff)
    with limited_to(_threads(potential, whole)):
        found = _mean([_flux_virials(member, whole) for member in members_of(potential)])
    return found.new_zeros(domain.num_atoms, 3, 3).index_add(0, originals.to(found.device), found)


class _OwnedTensorNet(BlockedTensorNet):
    """Features of the owned atoms of a domain. within [k]: how many atoms have at most k hops; layers need fewer."""

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """[N,C], zero for other atoms."""
        found = super().forward(edges, vectors, atomic_numbers, charge)
        return torch.nn.functional.pad(found, (0, 0, 0, edges.num_atoms - len(found)))

    def _extent(self, layers: int) -> Extent:
        count = self.within[len(self.network.layers) - layers]
        return Extent(count, count)


def _threads(potential: Potential | Ensemble, domain: Domain) -> int | None:
    on_cpu = potential.device.type == "cpu"
    return num_threads(EDGES_OF_AN_ATOM * domain.num_atoms, exact=True) if on_cpu else None


def _mean(found: list[Tensor]) -> Tensor:
    return torch.stack(found).mean(0)


def _energies(potential: Potential, domain: Domain) -> tuple[Tensor, Tensor, Domain, Tensor, Tensor]:
    """Energies [N] of owned atoms, leaves (positions, vectors), the domain on the device, and ends of its edges."""
    potential = potential.with_network(_OwnedTensorNet(potential.network, domain.within.tolist()))
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


def _unfolded(domain: Domain, reach: float, cutoff: float) -> tuple[Domain, Tensor]:
    """The domain without periodic directions, with images up to `reach` Å away as ghosts, and their originals [M]."""
    inverse = torch.linalg.inv(complete(domain.cell, domain.pbc)[0])
    places, far = domain.positions @ inverse, reach * torch.linalg.vector_norm(inverse, dim=0)
    owned = places[domain.hops == 0]
    atoms, shifts = copies(places, domain.pbc[0], owned.min(0).values - far, owned.max(0).values + far)
    # How far outside of the block of owned atoms along any axis, at most the distance from the nearest of them.
    outside = torch.maximum(owned.min(0).values - places[atoms] - shifts, places[atoms] + shifts - owned.max(0).values)
    away = (outside.clamp(min=0) * (reach / far)).max(1).values
    is_owned = (shifts == 0).all(1) & (domain.hops[atoms] == 0)
    hops = torch.where(is_owned, 0, (away / cutoff).ceil().clamp(min=1)).to(torch.int32)
    near = (away <= reach).nonzero().squeeze(-1)
    order = near[torch.argsort(hops[near], stable=True)]
    atoms, shifts, hops = atoms[order], shifts[order], hops[order]
    return replace(
        domain,
        positions=domain.positions[atoms] + shifts @ domain.cell[0],
        atomic_numbers=domain.atomic_numbers[atoms],
        system_index=torch.zeros_like(atoms),
        pbc=torch.zeros_like(domain.pbc),
        hops=hops,
        within=torch.searchsorted(hops, torch.arange(len(domain.within), dtype=torch.int32), right=True).to(
            torch.int32
        ),
    ), atoms
