"""The kernel of Coulomb energies over all pairs, under Triton's interpreter, against the plain energies."""

import numpy as np
import pytest
import torch
from model_kinds import coulomb
from pair_lists import random

from torchmdx import Batch, System
from torchmdx.engines.pairs.coulomb import fused_pairs
from torchmdx.models.priors.base import Geometry
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.neighbors.brute_force import brute_force

fused = pytest.importorskip("torchmdx.engines.gpu.triton.coulomb")
NearRows = pytest.importorskip("torchmdx.engines.gpu.triton.near_list").NearRows


def mixed_batch() -> Batch:
    """Molecules of several sizes, one of a single atom, one of none, and a crystal and a slab between them."""
    rng = np.random.default_rng(3)
    made = []
    for count, pbc in ((7, False), (3, True), (1, False), (0, False), (6, [True, True, False]), (9, False), (2, False)):
        cell = None if pbc is False else np.eye(3) * 6
        positions = rng.normal(size=(count, 3)) * 3 + [0, 0, 20]
        made.append(System.create(positions, rng.integers(1, 9, count), cell=cell, pbc=pbc))
    return Batch.from_systems(made)


SETTINGS = {
    "damped, six channels": (dict(weights=(1.0, 0.5, 2.0), damping=4.6), 3, 2),
    "short damping, one channel": (dict(weights=None, damping=1.5), 1, 1),
    "switched, five channels": (dict(weights=None, switch=(0.0, 5.0)), 1, 5),
    "switched late": (dict(weights=None, switch=(2.5, 4.0)), 1, 1),
}


@pytest.mark.interpreter
class TestKernel:
    @pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
    def test_energies_and_derivatives(self, settings):
        changes, sets, channels = settings
        prior, batch = Coulomb(coulomb(**changes), sets, channels), mixed_batch()
        given = [batch.positions.clone().requires_grad_(), random(batch.num_atoms, sets * channels).requires_grad_()]
        fused, plain = fused_pairs(prior, batch, *given), prior.plain_pairs(batch, *given)
        assert (plain[7:10] == 0).all()
        assert plain[:7].abs().min() > 1e-3
        torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)
        cotangent = random(batch.num_atoms, seed=5)
        found = torch.autograd.grad(fused, given, cotangent, retain_graph=True)
        expected = torch.autograd.grad(plain, given, cotangent, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)

        def second(energies):
            """Of a loss on the first derivatives, which is what training on forces differentiates."""
            first = torch.autograd.grad(energies, given, cotangent, create_graph=True)
            return torch.autograd.grad(sum((x**2).sum() for x in first), given)

        torch.testing.assert_close(second(fused), second(plain), rtol=1e-11, atol=1e-10)

    def test_charges_that_depend_on_positions(self):
        prior, batch = Coulomb(coulomb(weights=None)), mixed_batch()
        positions = batch.positions.clone().requires_grad_()

        def second(energies_of):
            charges = positions.square().sum(1, keepdim=True).sin()
            (forces,) = torch.autograd.grad(energies_of(batch, positions, charges).sum(), positions, create_graph=True)
            return forces, *torch.autograd.grad(forces.square().sum(), positions)

        found, expected = second(lambda *given: fused_pairs(prior, *given)), second(prior.plain_pairs)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-10)

    def test_float32_and_charges_that_are_given(self):
        prior, batch = Coulomb(coulomb(weights=None)), mixed_batch().to(dtype=torch.float32)
        positions, charges = batch.positions.clone().requires_grad_(), random(batch.num_atoms, 1).float()
        fused, plain = fused_pairs(prior, batch, positions, charges), prior.plain_pairs(batch, positions, charges)
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
        (found,) = torch.autograd.grad(fused.sum(), positions)
        (expected,) = torch.autograd.grad(plain.sum(), positions)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    def test_periodic_systems_have_none(self):
        prior = Coulomb(coulomb(weights=None))
        batch = Batch.from_systems([System.create(random(3, 3).numpy(), [1, 1, 8], cell=np.eye(3) * 5, pbc=True)] * 2)
        positions, charges = batch.positions.clone().requires_grad_(), random(6, 1).requires_grad_()
        energies = fused_pairs(prior, batch, positions, charges)
        for again in (False, True):
            found = torch.autograd.grad(energies.sum(), (positions, charges), create_graph=again, retain_graph=True)
            assert all((x == 0).all() for x in (energies, *found))

    @pytest.mark.parametrize("cut", [False, True, "ewald"])
    @pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
    def test_all_at_once_is_what_autograd_finds(self, settings, cut):
        changes, sets, channels = settings
        changes = {**changes, "cutoff": 7.0, "cut_in_vacuum": cut is True}
        if cut == "ewald":
            changes |= {"periodic": "ewald", "accuracy": 1e-4}
        prior, batch = Coulomb(coulomb(**changes), sets, channels), mixed_batch()
        edges = brute_force(batch, 9.0, capacity=brute_force(batch, 9.0).capacity + 5)
        charges = random(batch.num_atoms, sets * channels).requires_grad_()
        positions = batch.positions.clone().requires_grad_()
        strain = torch.zeros(batch.num_systems, 3, 3, dtype=torch.float64, requires_grad=True)
        symmetric = (strain + strain.transpose(1, 2)) / 2
        vectors = strained(edges.vectors(positions, batch.cell, batch.system_index), symmetric, batch, edges)
        distance = torch.linalg.vector_norm(vectors, dim=-1)
        exact = near_pairs(prior, Geometry(batch, edges, distance, positions, charges), charges)
        found = fused.evaluate(prior, batch, edges, charges.detach().float(), stress=True)
        torch.testing.assert_close(found.energies.double(), exact, rtol=2e-6, atol=2e-5)
        forces, pull, virial = torch.autograd.grad(exact.sum(), (positions, charges, strain))
        torch.testing.assert_close(found.forces.double(), -forces, rtol=1e-5, atol=3e-5)
        torch.testing.assert_close(found.pull.double(), pull, rtol=1e-5, atol=3e-5)
        of_systems = torch.zeros_like(strain).index_add_(0, batch.system_index.long(), found.virial.double())
        closed = batch.pbc.any(-1) | (cut is True)
        torch.testing.assert_close(of_systems[closed], virial[closed].detach(), rtol=1e-5, atol=1e-4)
        assert (of_systems[~closed] == 0).all()

    @pytest.mark.parametrize("add", [0, 1])
    def test_partners_in_parts_and_charges_in_padded_blocks(self, add):
        rng = np.random.default_rng(7)
        batch = Batch.from_systems([System.create(rng.normal(size=(90, 3)) * 6, rng.integers(1, 9, 90))])
        prior = Coulomb(coulomb(weights=(1.0, 0.5)), 2, 3)
        positions, charges = batch.positions.clone().requires_grad_(), random(90, 6).requires_grad_()
        exact = prior.plain_pairs(batch, positions, charges)
        forces, pull = torch.autograd.grad(exact.sum(), (positions, charges))
        blocks = torch.full((2, 90, 8), 5.0)  # also in what pads them
        blocks[..., :3] = charges.detach().unflatten(1, (2, 3)).transpose(0, 1)
        direct = fused.DirectCoulomb(prior, batch, 3, 8)
        assert direct.parts == 2
        before = 1.0 if add else float("nan")
        found = fused.Found(
            torch.ones(90, dtype=torch.float64), torch.full((90, 3), before), torch.full((2, 90, 8), before), None
        )
        direct.run(batch, brute_force(batch, 3.0), blocks, found, add=add)
        torch.testing.assert_close(found.energies - 1, exact, rtol=2e-6, atol=2e-5)
        torch.testing.assert_close(found.forces.double() - add, -forces, rtol=1e-5, atol=3e-5)
        gradient = found.pull[..., :3].transpose(0, 1).flatten(1)
        torch.testing.assert_close(gradient.double() - add, pull, rtol=1e-5, atol=3e-5)
        assert (found.pull[..., 3:] == add).all()


def near_pairs(prior, geometry, charges):
    """The energies of the pairs that the kernels sum: all, but for the reciprocal part of an Ewald sum."""
    energies = prior.within_cutoff(geometry, charges)
    return energies + geometry.open_pairs(prior, charges) if prior.sees_all_pairs else energies


def strained(vectors, strain, batch, edges):
    return vectors + torch.einsum("ei,eij->ej", vectors, strain[batch.system_index[edges.target].long()])


@pytest.mark.interpreter
class TestKernelOfNearRows:
    @pytest.mark.parametrize("spare", [0, 70, -1])
    def test_the_near_part_of_a_list(self, spare):
        batch, cutoff = mixed_batch(), 4.0
        far = brute_force(batch, 7.0, capacity=brute_force(batch, 7.0).capacity + 9)
        wanted = brute_force(batch, cutoff)
        near = NearRows(cutoff)
        count = int(near.counts(batch, far).sum())
        assert count == int(wanted.num_edges) > 20
        near.capacity = count + spare
        found = near.edges(batch, far)
        assert bool(found.overflow) == bool(far.overflow) == (spare < 0)
        assert int(found.needed) == count
        assert found.capacity == count + spare
        if spare < 0:
            assert int(found.num_edges) == int(found.row_ptr.max()) == count + spare
            return
        torch.testing.assert_close(found.row_ptr, wanted.row_ptr)
        padded = [torch.cat([getattr(wanted, k)[:count], torch.full((spare,), fill)]) for k, fill in PADDING.items()]
        for name, expected in zip(PADDING, padded, strict=True):
            torch.testing.assert_close(getattr(found, name), expected.int())
        rows = torch.cat([wanted.shifts[:count], torch.zeros(spare, 3, dtype=torch.int32)])
        torch.testing.assert_close(found.shifts, rows)

    @pytest.mark.parametrize("capacity", [0, 5])
    def test_no_atoms_have_an_empty_list(self, capacity):
        batch = Batch.from_systems([System.create(torch.zeros(0, 3), [])])
        near = NearRows(4.0)
        near.capacity = capacity
        found = near.edges(batch, brute_force(batch, 7.0, capacity=9))
        assert found.capacity == capacity
        assert (int(found.num_edges), int(found.needed), bool(found.overflow)) == (0, 0, False)
        assert found.row_ptr.tolist() == [0]
        assert found.shifts.shape == (capacity, 3)


LAST_ATOM = 27
PADDING = {"source": LAST_ATOM, "target": LAST_ATOM}
