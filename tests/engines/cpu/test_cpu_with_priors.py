"""Priors beside the network in C."""

import copy

import pytest
import torch
from model_kinds import d2, zbl

from torchmdx import Batch, System, evaluate
from torchmdx.engines.choose import choose_engine
from torchmdx.engines.cpu import build
from torchmdx.neighbors.brute_force import brute_force

pytestmark = pytest.mark.skipif(build.tensornet_library() is None, reason="needs a C compiler")


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize("priors", [[zbl], [zbl, d2]], ids=["zbl", "zbl, d2 beyond the network's cutoff"])
def test_the_sum_is_exact(make_potential, ethanol, crystal, slab, priors, stress):
    potential = make_potential(torch.float32, priors=priors)
    batch = Batch.from_systems([System.from_ase(atoms, dtype=torch.float32) for atoms in (ethanol, crystal, slab)])
    wanted = evaluate(copy.deepcopy(potential).double(), batch.to(dtype=torch.float64), stress=True)
    engine, why = choose_engine(potential, batch, stress=stress, precision="float32")
    assert (engine.name, why) == ("compiled and priors", "network in C on the CPU, priors separately")
    edges = brute_force(batch, potential.search_cutoff(batch))
    engine.reserve(edges.capacity)
    found = engine.run(batch.positions, batch.cell, edges)
    assert float((found.forces - wanted.forces).norm() / wanted.forces.norm()) < 1e-5
    assert float((found.energies - wanted.energies).abs().max()) < 1e-5 * float(wanted.energies.abs().max())
    assert (found.stress is not None) == stress
    if stress:
        known = ~torch.isnan(wanted.stress)
        assert float((found.stress - wanted.stress)[known].norm() / wanted.stress[known].norm()) < 5e-5
    alone = engine.run(batch.positions, batch.cell, edges, forces=False)
    assert torch.equal(alone.energies, found.energies)
    assert not found.forces.requires_grad
