"""The Coulomb kernel of the CPU: against the prior itself in float64, differentiated by autograd."""

import dataclasses

import pytest
import torch
from ase import Atoms
from compiled_runs import batch_of, relative

from torchmdx.engines.cpu import build, coulomb
from torchmdx.evaluation.derivatives import strained
from torchmdx.models.priors.base import Geometry, Lattice
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.cell import strained_cell, strained_positions

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C compiler")
CHANNELS = 5


@pytest.fixture
def batch(ethanol, crystal, cation, slab):
    """Open and periodic systems, one without atoms, with given charges."""
    made = batch_of(ethanol, crystal, Atoms(), slab, cation, Atoms("O"), dtype=torch.float64)
    given = neutral_slabs(made, torch.linspace(-0.5, 0.7, made.num_atoms, dtype=torch.float64)[:, None])
    return dataclasses.replace(made, partial_charges=given[:, 0])


def neutral_slabs(batch, charges):
    """Charged slabs have no lattice sum."""
    sums = torch.zeros(batch.num_systems, charges.shape[1], dtype=charges.dtype)
    means = sums.index_add(0, batch.system_index, charges) / batch.counts().clamp(min=1)[:, None]
    return charges - torch.where((batch.pbc.sum(-1) == 2)[:, None], means, 0.0)[batch.system_index]


def charges_of(batch):
    drawn = torch.rand(batch.num_atoms, CHANNELS, generator=torch.Generator().manual_seed(1)) - 0.5
    return neutral_slabs(batch, drawn)


def exact(prior, batch, edges, channels):
    """Energies, and their gradients in positions, strain and channels."""
    positions = batch.positions.clone().requires_grad_()
    strain = torch.zeros(batch.num_systems, 3, 3, dtype=torch.float64, requires_grad=True)
    channels = channels.double().requires_grad_()
    vectors = strained(edges.vectors(positions, batch.cell, batch.system_index), strain, edges, batch.system_index)
    places = strained_positions(positions, strain, batch.system_index)
    lattice = Lattice(places, strained_cell(batch.cell, strain))
    energies = prior(Geometry(batch, edges, torch.linalg.vector_norm(vectors, dim=-1), places, channels, lattice))
    slope, virial, pull = torch.autograd.grad(
        energies.sum(), (positions, strain, channels), allow_unused=True, materialize_grads=True
    )
    return energies.detach(), slope, virial, pull


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(cut_in_vacuum=True),
        dict(dielectric=float("inf"), cutoff=4.5, damping=3.0),
        dict(dielectric=1.0, switch=(1.0, 4.0), strength=3.0),
        dict(weights=(1.0, 0.0, 2.0, 0.5, -0.5)),
        dict(charges="given"),
        dict(periodic="ewald", accuracy=1e-4),
        dict(periodic="ewald", accuracy=1e-5, cutoff=5.5, damping=2.0, weights=(1.0, 0.0, 2.0, 0.5, -0.5)),
        dict(periodic="ewald", accuracy=1e-3, switch=(0.5, 3.0), charges="given"),
    ],
    ids=str,
)
@pytest.mark.parametrize("skin", [0.0, 1.5])
def test_it_is_the_prior(batch, settings, skin):
    config = CoulombConfig(**{"cutoff": 6.0, **settings})
    given = config.charges == "given"
    prior, channels = Coulomb(config, *(() if given else (CHANNELS, 1))), charges_of(batch)
    edges = brute_force(batch, config.cutoff + skin)
    found = coulomb.evaluate(prior, batch, edges, None if given else channels, forces=True, stress=True)
    energies, slope, virial, pull = exact(prior, batch, edges, channels)
    assert float(energies.abs().max()) > 1e-2
    assert relative(found.energies, energies) < 1e-6
    assert relative(found.slope, slope) < 1e-6
    assert relative(found.virial, virial) < 1e-6
    assert (found.pull is None) == given
    if found.pull is not None:
        assert relative(found.pull, pull) < 1e-6


@pytest.mark.usefixtures("own_threads")
@pytest.mark.parametrize("cut", [False, True])
def test_equal_bits_for_any_number_of_threads(crystal, ethanol, cut):
    batch = batch_of(crystal.repeat(4), ethanol.repeat(1))
    prior, channels = Coulomb(CoulombConfig(cutoff=5.0, cut_in_vacuum=cut), CHANNELS), charges_of(batch)
    edges, results = brute_force(batch, 5.0), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(coulomb.evaluate(prior, batch, edges, channels, forces=True, stress=True))
    for other in results[1:]:
        for name in ("energies", "slope", "virial", "pull"):
            assert torch.equal(getattr(other, name), getattr(results[0], name))


def test_no_atoms():
    batch = batch_of(Atoms())
    found = coulomb.evaluate(
        Coulomb(CoulombConfig(), 1), batch, brute_force(batch, 10.0), torch.zeros(0, 1), forces=True, stress=True
    )
    assert found.energies.shape == (0,)
    assert found.virial.tolist() == [[[0.0] * 3] * 3]


def test_results_add_up(ethanol):
    batch = batch_of(ethanol)
    prior, channels = Coulomb(CoulombConfig(), CHANNELS), charges_of(batch)
    one = coulomb.evaluate(prior, batch, brute_force(batch, 5.0), channels, forces=True, stress=True)
    assert torch.equal((one + one).pull, 2 * one.pull)
    without = coulomb.PriorResult(one.energies, one.slope, one.virial, None)
    assert torch.equal((without + one).pull, one.pull)
    assert (without + without).pull is None
