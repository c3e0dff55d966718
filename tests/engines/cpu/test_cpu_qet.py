"""QET with its features in C: the reference's numbers, and what a batch, priors and several threads change."""

import copy

import pytest
import torch
from model_kinds import as_text, zbl

from torchmdx import Batch, System, evaluate
from torchmdx.engines.choose import choose_engine
from torchmdx.engines.cpu import build
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.runtime.cpu_threads import limited_to

pytestmark = pytest.mark.skipif(build.tensornet_library() is None, reason="needs a C compiler")
WHY = "features in C on the CPU, equilibration and head between the passes"


def compared(potential, batch, stress=True):
    wanted = evaluate(copy.deepcopy(potential).double(), batch.to(dtype=torch.float64), stress=stress)
    engine, why = choose_engine(potential, batch, stress=stress, precision="float32")
    assert (engine.name, why) == ("compiled and equilibration", WHY)
    edges = brute_force(batch, potential.search_cutoff(batch))
    engine.reserve(edges.capacity)
    return engine, edges, engine.run(batch.positions, batch.cell, edges), wanted


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(messages="target", self_message=False, hardness="element"),
        dict(num_layers=0, readout_activation=False),
        dict(num_channels=21, num_layers=3, activation="tanh", num_head_layers=0),
        dict(priors=[zbl]),
    ],
    ids=as_text,
)
def test_results_are_those_of_the_reference(make_potential, ethanol, crystal, slab, settings):
    potential = make_potential(torch.float32, model="qet", **settings)
    batch = Batch.from_systems([System.from_ase(atoms, dtype=torch.float32) for atoms in (ethanol, crystal, slab)])
    batch.charge[0] = 1.0
    engine, edges, found, wanted = compared(potential, batch)
    assert float((found.forces - wanted.forces).norm() / wanted.forces.norm()) < 2e-5
    assert float((found.energies - wanted.energies).abs().max()) < 2e-5 * float(wanted.energies.abs().max())
    known = ~torch.isnan(wanted.stress)
    assert torch.equal(torch.isnan(found.stress), ~known)
    assert float((found.stress - wanted.stress)[known].norm() / wanted.stress[known].norm()) < 1e-4
    forces = found.forces.clone()
    alone = engine.run(batch.positions, batch.cell, edges, forces=False)
    torch.testing.assert_close(alone.energies, wanted.energies, rtol=0, atol=1e-4)
    again = engine.run(batch.positions, batch.cell, edges)
    assert torch.equal(again.forces, forces)


def test_threads_give_the_same_bits(make_potential, ethanol):
    potential = make_potential(torch.float32, model="qet")
    batch = Batch.from_systems([System.from_ase(ethanol, dtype=torch.float32)] * 8)
    found = []
    for threads in (1, 2):
        with limited_to(threads):
            _, _, result, _ = compared(potential, batch, stress=False)
            found.append((result.energies.clone(), result.forces.clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_no_atoms(make_potential):
    potential = make_potential(torch.float32, model="qet")
    batch = Batch.of(System.create([], [], dtype=torch.float32))
    _, _, found, wanted = compared(potential, batch, stress=False)
    assert found.forces.shape == (0, 3)
    assert torch.equal(found.energy, wanted.energy)
