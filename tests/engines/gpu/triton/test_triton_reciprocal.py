"""The kernels of the reciprocal sum against the sum in torch."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

from torchmdx import Batch, System
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig

kernels = pytest.importorskip("torchmdx.engines.gpu.triton.reciprocal")
from torchmdx.engines.gpu.triton.coulomb import Found  # noqa: E402

pytestmark = needs_kernels
LAYERS, COUNT, WIDE = 2, 3, 8  # charges of a layer, and with padding


def batch_of(*pbcs, atoms=37, dtype=torch.float64) -> Batch:
    draw, systems = np.random.default_rng(4), []
    for number, pbc in enumerate(pbcs):
        cell = (6.0 + number) * np.eye(3) + draw.uniform(-0.8, 0.8, (3, 3))
        places = draw.uniform(-9, 9, (atoms + 3 * number, 3))
        systems.append(System.create(places, [8] * len(places), cell if pbc else None, pbc, dtype=dtype))
    return Batch.from_systems(systems).to(DEVICE)


def prior_of(**settings) -> Coulomb:
    settings = {"periodic": "ewald", "cutoff": 5.0, "accuracy": 1e-3, **settings}
    made = Coulomb(CoulombConfig(**settings), LAYERS, COUNT).to(DEVICE)
    made.keep_lists()
    return made


def charges_of(batch) -> torch.Tensor:
    drawn = torch.rand(batch.num_atoms, LAYERS * COUNT, generator=torch.Generator().manual_seed(2))
    return (drawn - 0.4).to(DEVICE)  # with a background


def blocks_of(charges) -> torch.Tensor:
    found = torch.full((LAYERS, len(charges), WIDE), 7.0, device=DEVICE)
    found[..., :COUNT] = charges.unflatten(1, (LAYERS, COUNT)).transpose(0, 1)
    return found


def flag() -> torch.Tensor:
    return torch.zeros((), dtype=torch.bool, device=DEVICE)


def run(prior, batch, charges, *, forces=True):
    """(what was added to energies, forces and derivatives in charges; virial; overflow)."""
    vectors, overflow = prior.vectors_for(batch, charges, flag()), flag()
    direct, blocks = kernels.DirectReciprocal(prior, batch, COUNT, WIDE), blocks_of(charges)
    n = batch.num_atoms
    new = blocks.new_ones
    found = Found(new(n, dtype=torch.float64), new(n, 3), new(LAYERS, n, WIDE), None)
    direct.run(vectors, batch, blocks, overflow, forces=forces)
    direct.add(batch, blocks, found)
    pull = found.pull[..., :COUNT].transpose(0, 1).flatten(1) - 1
    assert (found.pull[..., COUNT:] == 1).all()
    return found.energies - 1, found.forces - 1, pull, direct.virial(), overflow


KINDS = {"bulk": [True], "with a molecule": [False, True], "crystals": [True, False, True]}


@pytest.mark.parametrize("pbcs", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_it_is_the_sum_in_torch(pbcs, dtype):
    prior, batch = prior_of(weights=(1.0, 0.5)), batch_of(*pbcs, dtype=dtype)
    charges = charges_of(batch)
    wanted = differentiate_reciprocal(prior, batch, charges.double(), flag(), stress=True)
    energies, forces, pull, virial, overflow = run(prior, batch, charges)
    scale = wanted.slope.abs().max()
    torch.testing.assert_close(energies, wanted.energies, rtol=1e-5, atol=1e-5 * float(wanted.energies.abs().max()))
    torch.testing.assert_close(forces.double(), -wanted.slope, rtol=0, atol=2e-6 * float(scale) + 1e-6)
    torch.testing.assert_close(pull.double(), wanted.pull, rtol=0, atol=3e-6 * float(wanted.pull.abs().max()))
    torch.testing.assert_close(virial, wanted.virial, rtol=0, atol=1e-5 * float(wanted.virial.abs().max()))
    assert not overflow


@pytest.mark.parametrize("parts", [1, 4])
def test_sums_in_parts(monkeypatch, parts):
    monkeypatch.setattr(kernels.DirectReciprocal, "_parts", staticmethod(lambda programs, most: parts))
    prior, batch = prior_of(), batch_of(True, atoms=150)
    charges = charges_of(batch)
    wanted = differentiate_reciprocal(prior, batch, charges.double(), flag(), stress=True)
    energies, forces, pull, virial, _ = run(prior, batch, charges)
    assert (forces + wanted.slope).norm() < 2e-6 * wanted.slope.norm()
    assert (pull - wanted.pull).norm() < 2e-6 * wanted.pull.norm()
    assert (virial - wanted.virial).norm() < 1e-5 * wanted.virial.norm()
    assert abs(float((energies - wanted.energies).sum())) < 1e-5 * float(wanted.energies.abs().sum())


@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("pbcs", [[True], [True, False], [False, True]], ids=str)
def test_products_of_many_atoms_and_vectors(monkeypatch, pbcs, forces):
    monkeypatch.setattr(kernels, "MOST_FUSED", 0)
    monkeypatch.setattr(kernels, "MOST_WAVES", 64 * 50)
    prior, batch = prior_of(weights=(1.0, 0.5)), batch_of(*pbcs, atoms=50)
    charges = charges_of(batch)
    wanted = differentiate_reciprocal(prior, batch, charges.double(), flag(), stress=True)
    energies, found, pull, virial, overflow = run(prior, batch, charges, forces=forces)
    assert prior.kept.latest.count >= 64  # and the background
    assert float((energies - wanted.energies).norm() / wanted.energies.norm()) < 1e-5
    assert float((virial - wanted.virial).norm() / wanted.virial.norm()) < 1e-5
    if forces:
        assert float((found + wanted.slope).norm() / wanted.slope.norm()) < 2e-6
        assert float((pull - wanted.pull).norm() / wanted.pull.norm()) < 2e-6
    assert not overflow


def test_energies_alone():
    prior, batch = prior_of(), batch_of(True)
    charges = charges_of(batch)
    energies, forces, pull, _, _ = run(prior, batch, charges, forces=False)
    wanted = differentiate_reciprocal(prior, batch, charges.double(), flag())
    torch.testing.assert_close(energies, wanted.energies, rtol=1e-5, atol=1e-5 * float(wanted.energies.abs().max()))
    assert not forces.any()
    assert not pull.any()


@pytest.mark.parametrize(("factor", "fits"), [(1.02, True), (0.8, True), (1.05, False)])
def test_a_list_that_does_not_fit_sets_the_flag(factor, fits):
    prior, batch = prior_of(), batch_of(True, False)
    charges, blocks = charges_of(batch), blocks_of(charges_of(batch))
    vectors, direct = prior.vectors_for(batch, charges, flag()), kernels.DirectReciprocal(prior, batch, COUNT, WIDE)
    batch.cell.mul_(factor)
    overflow = flag()
    direct.run(vectors, batch, blocks, overflow, forces=True)
    assert bool(overflow) != fits
    assert bool(vectors.fits(batch)) == fits
    batch.pbc[1] = True
    overflow = flag()
    direct.run(vectors, batch, blocks, overflow, forces=True)
    assert overflow
