"""Results of the exact model in float64, for audits: of whole systems, or of a few atoms of a large one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from torchmdx.evaluation.blocks import BlockedTensorNet, in_blocks
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.coulomb_cutoff import with_tight_sums
from torchmdx.models.ensemble import Ensemble, mean_of, members_of, spread_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry, Prior
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.tensornet import TensorNet
from torchmdx.neighbors.explicit import search_explicitly
from torchmdx.runtime.cpu_threads import limited_to, num_threads
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.step.buffer_storage import SPREADS, UNCERTAINTIES
from torchmdx.step.environment import Around, Environment, around
from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch

# Up to this many atoms `evaluate` searches by itself: all pairs of all images.
FEW_ATOMS = 600

Results = dict[str, Tensor]


def exact_results(potential: Potential | Ensemble, batch: Batch, *, stress: bool = False) -> Results:
    """Energy [S], energies [N], forces [N,3], stress [S,3,3] if asked for, and what tells how certain they are.

    In blocks, because the derivative takes 6 MB per atom otherwise, more than the fast path of a large structure.
    """
    exact = exact_copy(potential)
    blocked = [_in_blocks(member) for member in members_of(exact)]
    whole = exact.with_members(blocked) if isinstance(exact, Ensemble) else blocked[0]
    batch = batch.to(dtype=torch.float64)
    edges = search_explicitly(batch, exact.search_cutoff(batch)) if batch.num_atoms > FEW_ATOMS else None
    found = evaluate(whole, batch, edges, stress=stress)
    given = {name: getattr(found, name) for name in ("energy", "energies", "forces", "stress", *DOUBTS)}
    return {name: value.double() for name, value in given.items() if value is not None}


DOUBTS = (*SPREADS, *UNCERTAINTIES)


def exact_copy(potential: Potential | Ensemble) -> Potential | Ensemble:
    """The potential in float64, with tighter sums over lattices."""
    exact = copy.deepcopy(potential).double()
    if isinstance(exact, Ensemble):
        return exact.with_members([with_tight_sums(member) for member in exact])
    return with_tight_sums(exact)


def _in_blocks(potential: Potential) -> Potential:
    made = in_blocks(potential.network)
    return potential if made is None else potential.with_network(made)


def whole_only(potential: Potential | Ensemble, periodic: bool) -> str | None:
    """Why the energy of an atom may depend on the whole system; None if it depends on an environment alone."""
    for member in members_of(potential):
        if member.predicts_charges:
            return "its charges depend on all atoms of a system"
        if type(member.network) is not TensorNet:
            return f"what an atom depends on is not known of a {type(member.network).__name__}"
        for prior in _priors(member):
            if _hops(prior, periodic) is None:
                return f"the prior {prior.config.name} may depend on atoms at any distance"
    return None


def _priors(potential: Potential) -> list[Prior]:
    return [cast(Prior, prior) for prior in potential.priors]


def _hops(prior: Prior, periodic: bool) -> int | None:
    """How many of its cutoffs away atoms influence the energy of an atom; None: not known."""
    if isinstance(prior, Coulomb) and prior.splitting is None and (periodic or prior.config.cut_in_vacuum):
        return 1  # of given charges: potentials that predict them are evaluated as a whole
    return prior.reach


@dataclass(frozen=True, eq=False)
class Local:
    """Exact results of a few atoms. atoms [n]: which of the batch they are, or are images of.

    Attributes:
        results: Energies [n] eV, forces [m,3] eV/Å on the first m atoms, and of an ensemble force_spread [m].
        num_around: Atoms that were looked at.
    """

    atoms: Tensor
    results: Results
    num_around: int


@runs_on(device_of_potential)
@isolated
def local_results(potential: Potential | Ensemble, batch: Batch, atom: int) -> Local:
    """Results of an atom of a large system and of those around it, by a potential in float64 without a `whole_only`.

    An energy depends on the atoms within L+1 hops, with L layers, and a force on the energies of these, hence on
    2 (L+1) hops. Of a domain, the energies of owned atoms count. Raises NotAffordable.
    """
    batch = batch.to(dtype=torch.float64)
    members = members_of(potential)
    periodic = bool(batch.pbc[int(batch.system_index[atom])].any())
    reaches = [2 * hops * cutoff for member in members for hops, cutoff in _reaches(member, periodic)]
    near = around(batch, atom, max(reaches))
    found = [_of_member(member, batch, near, periodic) for member in members]
    atoms = min((local.atoms for local in found), key=len)
    energies = torch.stack([local.results["energies"][: len(atoms)] for local in found])
    forces = torch.stack([local.results["forces"] for local in found])
    results = {"energies": mean_of(energies), "forces": mean_of(forces)}
    if isinstance(potential, Ensemble):
        results["force_spread"] = potential.spread_factors[1] * spread_of(forces, vectors=True)
    return Local(atoms, results, len(near.atoms))


def _reaches(potential: Potential, periodic: bool) -> list[tuple[int, float]]:
    """(hops, cutoff) up to which atoms influence the energy of an atom, through the network and through each prior."""
    found = [(int(potential.config.num_layers) + 1, float(potential.config.cutoff))]
    return found + [(_hops(prior, periodic) or 0, prior.cutoff(periodic)) for prior in _priors(potential)]


def _of_member(potential: Potential, batch: Batch, near: Around, periodic: bool) -> Local:
    """The results of one potential, of the atoms in the order of their environment."""
    (hops, cutoff), *of_priors = _reaches(potential, periodic)
    environment = near.environment(cutoff, 2 * hops)
    atoms = environment.atoms[: environment.within[hops]]
    with torch.enable_grad():
        drawn = near.positions[: near.num_drawn].detach().clone().requires_grad_()
        energies = _counted(_network_energies(potential, batch, environment, hops, drawn), atoms, batch)
        total = energies.sum()
        for prior, (steps, far) in zip(_priors(potential), of_priors, strict=True):
            if far == 0:
                continue
            environment = near.environment(far, 2 * steps)
            of_prior = _prior_energies(prior, batch, environment, drawn)[: environment.within[steps]]
            of_prior = _counted(of_prior, environment.atoms[: len(of_prior)], batch)
            total = total + of_prior.sum()
            energies = energies[: len(drawn)] + of_prior[: len(drawn)]  # other atoms come in another order
        (slope,) = torch.autograd.grad(total, drawn)
    return Local(atoms[: len(energies)], {"energies": energies.detach(), "forces": -slope}, len(near.atoms))


def _network_energies(potential: Potential, batch: Batch, environment: Environment, hops: int, drawn: Tensor) -> Tensor:
    """Energies [n] of the atoms up to `hops` away, without priors."""
    network, edges, rows = potential.network, environment.edges, environment.within[hops]
    part, vectors = _cluster(batch, environment), _vectors(environment, drawn)
    with limited_to(_threads(edges.capacity, vectors)):
        charge = part.charge.expand(part.num_atoms)
        features = BlockedTensorNet(network, environment.within)(edges, vectors, part.atomic_numbers, charge)
        bare = potential.with_priors(())
        energies = bare.assemble(bare.head(features), _rows(part, rows), lambda: _no_geometry())
    # `assemble` divides the shift of a system among the atoms that it sees.
    num_atoms = int(batch.counts()[int(batch.system_index[environment.atoms[0]])])
    return energies + potential.shift * (1 / num_atoms - 1 / rows)


def _no_geometry() -> Geometry:
    raise AssertionError("a potential without priors needs no geometry")


def _prior_energies(prior: Prior, batch: Batch, environment: Environment, drawn: Tensor) -> Tensor:
    part, edges, vectors = _cluster(batch, environment), environment.edges, _vectors(environment, drawn)
    with limited_to(_threads(edges.capacity, vectors)):
        lengths = torch.linalg.vector_norm(vectors, dim=-1)
        return prior(Geometry(part, edges, lengths, part.positions, None)).double()


def _threads(num_edges: int, like: Tensor) -> int | None:
    return None if like.is_cuda else num_threads(num_edges, exact=True)


def _vectors(environment: Environment, drawn: Tensor) -> Tensor:
    positions = torch.cat([drawn, environment.positions[len(drawn) :]])
    return positions.index_select(0, environment.edges.source) - positions.index_select(0, environment.edges.target)


def _cluster(batch: Batch, environment: Environment) -> Batch:
    """The environment as a system; it keeps its periodic directions, which priors look at, but edges have no shifts."""
    atoms = environment.atoms
    system = batch.system_index[atoms[:1]]
    return Batch(
        positions=environment.positions,
        atomic_numbers=batch.atomic_numbers[atoms],
        system_index=torch.zeros_like(atoms),
        cell=batch.cell[system],
        pbc=batch.pbc[system],
        charge=batch.charge[system],
        partial_charges=None if batch.partial_charges is None else batch.partial_charges[atoms],
    )


def _rows(part: Batch, count: int) -> Batch:
    return Batch(
        positions=part.positions[:count],
        atomic_numbers=part.atomic_numbers[:count],
        system_index=part.system_index[:count],
        cell=part.cell,
        pbc=part.pbc,
        charge=part.charge,
    )


def _counted(energies: Tensor, atoms: Tensor, batch: Batch) -> Tensor:
    """Energies [n] of these atoms; of a domain zero for those that it does not own."""
    return torch.where(batch.hops[atoms] == 0, energies, 0.0) if isinstance(batch, Domain) else energies
