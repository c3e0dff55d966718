"""An engine for potentials with priors: the network by fused kernels, the priors separately.

Coulomb energies have kernels of their own; other priors are differentiated by autograd. Those that need nothing of the
network are a branch of the graph, which begins with the network and joins before forces are summed. The sum over the
reciprocal lattice of an Ewald sum is a branch that runs in parallel with the Coulomb kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from torchmdx.engines.engine import Outputs
from torchmdx.engines.gpu.branches import Branch, in_branch
from torchmdx.engines.gpu.engine import allocate, gave_up, launches_of, outputs_of, planned_for, within_of
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.pairs.energy import strained_positions
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.engines.pairs.prior_geometry import pair_geometry
from torchmdx.engines.plan import Plan
from torchmdx.engines.plan.decide import apart_from_network
from torchmdx.engines.plan.padding import padded_charges
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Lattice, Prior, shapes_are_fixed
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.priors.d2 import D2
from torchmdx.models.priors.d3 import D3
from torchmdx.models.priors.ewald import KVectors
from torchmdx.models.priors.zbl import ZBL
from torchmdx.neighbors.capacity import with_head_room
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.reverse import find_reverse
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.structures.cell import per_volume, strained_cell
from torchmdx.structures.domain import of_owned
from torchmdx.structures.system import Batch

if TYPE_CHECKING:
    from torchmdx.engines.gpu.triton.coulomb import DirectCoulomb, Found
    from torchmdx.engines.gpu.triton.reciprocal import DirectReciprocal

RECIPROCAL, BRANCH = 3, 4  # numbers of branches; charged.py has others
WITHOUT_CHARGES = (ZBL, D2, D3)  # priors that read no charges


class GpuPriorEngine:
    """TensorNet or TensorNet2 in fused kernels on a GPU, and priors.

    Gradients of priors with respect to predicted charges enter the fused backward pass. Few atoms of a TensorNet2 whose
    only prior is a Coulomb energy of all pairs may be one launch.

    Attributes:
        alone: As for `GpuEngine`.
    """

    alone = False
    plan: Plan | None = None

    def __init__(self, model: FastTensorNet, potential: Potential, batch: Batch, *, stress: bool) -> None:
        from torchmdx.engines.gpu.triton.near_list import NearRows

        self.model = model
        self.potential = copy.deepcopy(potential).requires_grad_(False).with_kept_lists()
        self.name, self.table_error = "kernels and priors, float32", model.table.error
        self.batch, self.stress = batch, stress
        priors = [cast(Prior, prior) for prior in self.potential.priors]
        # By type: a class derived from Coulomb may compute another energy.
        coulombs = [prior for prior in priors if type(prior) is Coulomb]
        self.others = [prior for prior in priors if type(prior) is not Coulomb]
        # The gradient in predicted charges is written by the first of them and added to by the others.
        coulombs.sort(key=lambda prior: prior.config.charges != "predicted")
        self.direct = [(prior, self._made_for(prior)) for prior in coulombs]
        summed = [prior for prior, direct in self.direct if prior.splitting is not None and direct.periodic]
        if isinstance(model, FastTensorNet2) and not model.between:
            model.coulomb = self.direct[0][1]
        self.reciprocal = {prior: self._sum_for(prior) for prior in summed}
        new = batch.positions.new_zeros
        self.forces = new(batch.num_atoms, 3, dtype=torch.float32)
        self.virials = new(batch.num_atoms, 9, dtype=torch.float32)
        # If priors have a larger cutoff than the network, the network gets a list of its own.
        cutoff = float(potential.config.cutoff)
        self.near = NearRows(cutoff) if potential.search_cutoff(batch) > cutoff else None

    def _made_for(self, prior: Coulomb) -> DirectCoulomb:
        from torchmdx.engines.gpu.triton.coulomb import DirectCoulomb

        return DirectCoulomb(prior, self.batch, *self._blocks_of(prior))

    def _sum_for(self, prior: Coulomb) -> DirectReciprocal:
        from torchmdx.engines.gpu.triton.reciprocal import DirectReciprocal

        return DirectReciprocal(prior, self.batch, *self._blocks_of(prior))

    def _blocks_of(self, prior: Coulomb) -> tuple[int, int]:
        """Channels in a block of charges, and numbers with those that pad it."""
        if prior.config.charges != "predicted":
            return 1, 1
        count = self.potential.config.num_charges
        return count, padded_charges(count)

    def reserve(self, capacity: int) -> None:
        self.reverse = torch.zeros(capacity, dtype=torch.int32, device=self.batch.positions.device)
        if self.near is None:
            allocate(self.model, self.batch, capacity, stress=self.stress, alone=self.alone)
            self.plan = planned_for(self.model, self.plan)
            self.name = f"kernels and priors, float32{launches_of(self.model)}"
        else:
            self.near.capacity = None

    def gave_up(self) -> bool:
        """As `GpuEngine.gave_up`."""
        return gave_up(self)

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        batch = replace(self.batch, positions=positions, cell=cell)
        inner = edges if self.near is None else self._nearer(batch, edges)
        inputs = (positions, batch.atomic_numbers, batch.system_index, cell, batch.charge, inner)
        if self.model.single is not None and forces:
            found = self.model.run(*inputs)
            return outputs_of(found, None)
        virial, within = self.stress and forces, within_of(batch)
        with in_branch(positions.device, BRANCH) as branch:
            priors = _Priors(self, batch, edges, forces, virial, branch)
            found = self.model.run(*inputs, forces=forces, virial=virial, between=priors.evaluate, within=within)
        stress = found.stress
        if isinstance(priors.virial, Tensor):
            stress = per_volume(found.virial + priors.virial, cell)
        return outputs_of(found, stress if self.stress else None)

    def _nearer(self, batch: Batch, edges: Edges) -> Edges:
        """The network's own list. Its capacity is chosen at the first run after `reserve`, which reads the device."""
        assert self.near is not None
        if self.near.capacity is None:
            if shapes_are_fixed(batch.positions):
                raise RuntimeError("an evaluation must have run before it is captured")
            capacity = with_head_room(int(self.near.counts(batch, edges).sum()), batch.num_atoms)
            allocate(self.model, batch, capacity, stress=self.stress)
            self.plan = planned_for(self.model, self.plan)
            self.near.capacity = capacity
        return self.near.edges(batch, edges)


@dataclass(frozen=True)
class _Found:
    """What autograd finds: energies [N], forces [N,3], virial [S,3,3], pull: gradient in charges."""

    energies: Tensor
    forces: Tensor | None = None
    virial: Tensor | None = None
    pull: Tensor | None = None


class _Priors:
    """One evaluation of the priors: in a branch, or between forward and backward pass of the kernels.

    Energies are added to those of the network. Forces and virials reach the kernels that sum them over atoms.

    Attributes:
        virial: Of priors differentiated by autograd, and of sums over a reciprocal lattice, [S,3,3].
    """

    def __init__(
        self, engine: GpuPriorEngine, batch: Batch, edges: Edges, forces: bool, stress: bool, branch: Branch
    ) -> None:
        self.engine, self.batch, self.edges, self.branch = engine, batch, edges, branch
        self.with_forces, self.with_stress = forces, stress
        self.virial: Tensor | float = 0.0
        self.found: _Found | None = None
        # Of classes of the package: others may read charges.
        known = all(type(prior) in WITHOUT_CHARGES for prior in engine.others)
        self.in_branch = known and apart_from_network([prior.config for prior in engine.others])
        if self.in_branch:
            branch.run(lambda: self._by_autograd(None))

    def evaluate(self, chain: Any) -> None:
        """Called after the kernels' forward pass: reads their charges and sets what their backward pass adds."""
        engine = self.engine
        if self.with_forces:
            chain.others = (engine.forces, engine.virials if self.with_stress else None)
        for k, (prior, direct) in enumerate(engine.direct):
            self._directly(prior, direct, chain, add=k > 0)
        if not engine.others:
            return
        if not self.in_branch:
            channels_of: Callable[[], Tensor] | None = getattr(chain, "channels", None)
            self._by_autograd(None if channels_of is None else channels_of())
        if self.in_branch and self.with_forces:
            chain.before_forces = lambda: self._take(chain)
        else:
            self._take(chain)

    def _take(self, chain: Any) -> None:
        """Adds what autograd has found to the results and to what the kernels sum."""
        self.branch.join()
        assert self.found is not None
        found, engine, direct = self.found, self.engine, bool(self.engine.direct)
        chain.buffers.energies.add_(found.energies)
        if found.forces is not None:
            (engine.forces.add_ if direct else engine.forces.copy_)(found.forces)
        if found.virial is not None:
            self.virial = self.virial + found.virial
        if self.with_stress and not direct:
            engine.virials.zero_()
        if found.pull is not None:
            chain.take_pull(found.pull, add=chain.pulled)

    def _directly(self, prior: Coulomb, direct: DirectCoulomb, chain: Any, *, add: bool) -> None:
        """A prior that has kernels. add: to the forces and gradients that are there."""
        from torchmdx.engines.gpu.triton.coulomb import Found

        engine, virials = self.engine, self.engine.virials if self.with_stress else None
        if prior.config.charges == "predicted":
            charges, pull = chain.q.charges, chain.q.charges_gradient
            chain.pulled = True
        else:
            charges = prior.given_charges(self.batch).to(engine.potential.dtype).contiguous()[None]
            pull = torch.empty_like(charges)
        found = Found(chain.buffers.energies, engine.forces, pull, virials)
        if prior.splitting is None or not direct.periodic:
            direct.run(self.batch, self.edges, charges, found, add=add)
            return
        predicted = prior.config.charges == "predicted"
        channels_of: Callable[[], Tensor] = chain.channels if predicted else lambda: charges[0][:, None]
        vectors = self._vectors(prior, channels_of)
        if vectors.has_slabs:
            direct.run(self.batch, self.edges, charges, found, add=add)
            self._in_torch(prior, channels_of(), found, chain if predicted else None)
            return
        reciprocal = engine.reciprocal[prior]
        with in_branch(charges.device, RECIPROCAL) as branch:
            options = dict(forces=self.with_forces)
            branch.run(lambda: reciprocal.run(vectors, self.batch, charges, self.edges.overflow, **options))
            direct.run(self.batch, self.edges, charges, found, add=add)
        reciprocal.add(self.batch, charges, found)
        if self.with_stress:
            self.virial = self.virial + reciprocal.virial()

    def _vectors(self, prior: Coulomb, channels_of: Callable[[], Tensor]) -> KVectors:
        """In a capture, the list that is there: kernels find out whether it fits."""
        kept = prior.kept
        if kept is not None and kept.latest is not None and shapes_are_fixed(self.batch.positions):
            return kept.latest
        return prior.vectors_for(self.batch, channels_of(), self.edges.overflow)

    def _in_torch(self, prior: Coulomb, channels: Tensor, found: Found, chain: Any) -> None:
        """The reciprocal sum of a batch with slabs, for which there are no kernels. chain: of predicted charges."""
        options = dict(forces=self.with_forces, stress=self.with_stress)
        far = differentiate_reciprocal(prior, self.batch, channels, self.edges.overflow, **options)
        found.energies.add_(far.energies)
        if self.with_forces:
            found.forces.sub_(far.slope)
            if chain is not None:
                chain.take_pull(far.pull, add=True)
        self.virial = self.virial + far.virial

    def _by_autograd(self, channels: Tensor | None) -> None:
        """The other priors. channels: charges that the network has predicted, if any are read."""
        batch, potential = self.batch, self.engine.potential
        find_reverse(self.edges, self.engine.reverse)
        pairs = PairList.of(self.edges, self.engine.reverse)
        with torch.set_grad_enabled(self.with_forces):
            positions = batch.positions.detach().requires_grad_(self.with_forces)
            strain = symmetric = None
            if self.with_stress:
                strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_()
                symmetric = (strain + strain.transpose(1, 2)) / 2
            if channels is not None:
                channels = channels.detach().requires_grad_(self.with_forces)
            dtype = potential.dtype
            vectors = pairs.vectors(positions, batch.cell, batch.system_index, symmetric).to(dtype)
            places = positions if symmetric is None else strained_positions(positions, symmetric, batch)
            seen = replace(batch, positions=places.detach().to(dtype), cell=batch.cell.to(dtype))
            lattice = Lattice(places, strained_cell(batch.cell, symmetric))
            geometry = pair_geometry(seen, pairs, vectors, lattice, channels)
            energies = of_owned(potential.prior_energies(geometry, self.engine.others), batch)
            total = energies.sum()
        self.found = _Found(energies.detach())
        if not self.with_forces:
            return
        inputs = [x for x in (positions, strain, channels) if x is not None]
        found = iter(torch.autograd.grad(total, inputs, allow_unused=True))
        forces = -_or_zeros(next(found), positions)
        virial = None if strain is None else _or_zeros(next(found), strain)
        self.found = _Found(energies.detach(), forces, virial, next(found, None))


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
