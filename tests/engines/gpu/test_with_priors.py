"""Fused kernels with priors evaluated separately, against the exact model in float64."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from model_kinds import zbl
from test_gpu_tensornet import batch_of

from torchmdx.engines.gpu.engine import make_kernels
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.plan import decide
from torchmdx.neighbors.brute_force import brute_force


@pytest.mark.nightly
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


@needs_kernels
def test_priors_beside_the_network_give_what_they_give_between(make_potential, crystal, monkeypatch):
    """A branch of its own, or between forward and backward pass: energies alone, forces and stress."""
    potential = make_potential(torch.float32, num_channels=16, num_layers=1, priors=[zbl]).to(DEVICE)
    batch = batch_of(crystal).to(DEVICE, torch.float32)
    edges = brute_force(batch, potential.cutoff)
    found = []
    for kinds in (decide.WITHOUT_CHARGES, ()):
        monkeypatch.setattr(decide, "WITHOUT_CHARGES", kinds)
        engine = GpuPriorEngine(make_kernels(potential, priors=True), potential, batch, stress=True)
        engine.reserve(edges.capacity)
        alone = engine.run(batch.positions, batch.cell, edges, forces=False).energy.clone()
        found.append([alone, *(x.clone() for x in results(engine.run(batch.positions, batch.cell, edges)))])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def results(outputs):
    return outputs.energy, outputs.energies, outputs.forces, outputs.stress
