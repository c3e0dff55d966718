"""Fused kernels with priors evaluated separately, against the exact model in float64."""

import copy

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from model_kinds import kinds
from test_gpu_tensornet import batch_of

from torchmdx.engines.gpu.engine import kernels_for
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.gpu.with_priors import PriorKernelEngine
from torchmdx.evaluation.evaluate import evaluate
from torchmdx.neighbors.brute_force import brute_force

# The interpreter takes a quarter of a minute for some; without charges all go the same way.
PRIORS = ("zbl", "coulomb", "everything") + (("d2", "d3", "coulomb-cut") if DEVICE == "cuda" else ())


@needs_kernels
@pytest.mark.parametrize("kind", kinds(*PRIORS))
def test_every_prior_stands_beside_the_kernels(make_kind, kind, ethanol, cation, slab):
    single = copy.deepcopy(make_kind(kind, torch.float32)).to(DEVICE)
    fast = kernels_for(single)
    batch = batch_of(ethanol, cation, slab)
    exact = evaluate(make_kind(kind).to(DEVICE), batch, stress=True)
    engine = PriorKernelEngine(fast(single, priors=True), single, batch.to(DEVICE, torch.float32), stress=True)
    found = brute_force(batch, single.search_cutoff(batch))
    edges = brute_force(batch, single.search_cutoff(batch), capacity=found.capacity + 7)
    engine.reserve(edges.capacity)
    inputs = (batch.positions.float(), batch.cell.float(), edges)
    outputs = engine.run(*inputs)
    torch.testing.assert_close(outputs.energy, exact.energy, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(outputs.energies, exact.energies, atol=1e-5, rtol=1e-6)
    assert (outputs.forces - exact.forces).norm() < 1e-5 * exact.forces.norm()
    assert (outputs.stress[2] - exact.stress[2]).norm() < 1e-4 * exact.stress[2].norm()
    alone = engine.run(*inputs, forces=False)
    torch.testing.assert_close(alone.energy, outputs.energy, atol=1e-5, rtol=1e-6)
    assert not any(x.requires_grad for x in vars(outputs).values() if x is not None)


@needs_kernels
def test_what_pulls_on_charges_of_every_layer_reaches_the_forces(make_potential, ethanol, cation):
    """An energy of all charges, from outside: against differences of the exact one."""
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=2, num_charges=3).requires_grad_(False)
    potential = potential.to(DEVICE)
    batch = batch_of(ethanol, cation)
    weights = torch.randn(batch.num_atoms, 9, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    edges = brute_force(batch, potential.cutoff)

    def energy(positions):
        vectors = edges.vectors(positions, batch.cell, batch.system_index)
        total, _, _ = potential.double().outputs(batch, edges, vectors, positions)
        _, channels = potential.features(batch, edges, vectors)
        return total.sum() + (channels * weights).sum()

    positions = batch.positions.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(energy(positions), positions)
    fast = FastTensorNet2(potential.float(), priors=True)
    fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity)
    single = batch.to(DEVICE, torch.float32)

    def pull(chain):
        chain.take_pull(weights)

    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    found = fast.run(*inputs, between=pull)
    assert (found.forces + wanted).norm() < 1e-5 * wanted.norm()
