"""The reciprocal sum of engines against the differentiable one in float64."""

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.engines import reciprocal
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.priors import base, ewald
from torchmdx.models.priors import reciprocal as reference
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.structures.cell import strained_cell, strained_positions

SETS = 3
SLAB = (True, True, False)


METHODS = ("ewald", "pme")


def prior_of(**settings) -> Coulomb:
    made = Coulomb(CoulombConfig(**{"periodic": "ewald", "cutoff": 5.0, **settings}), SETS)
    made.keep_lists()
    return made


def batch_of(*pbcs, count=7) -> Batch:
    draw, systems = np.random.default_rng(4), []
    for number, pbc in enumerate(pbcs):
        cell = (6.0 + number) * np.eye(3) + draw.uniform(-0.8, 0.8, (3, 3))
        if pbc == SLAB:
            cell[2] = 0
        places = draw.uniform(0, 6, (count + number, 3))
        systems.append(System.create(places, [8] * len(places), cell if pbc else None, pbc))
    return Batch.from_systems(systems)


def charges_of(batch) -> torch.Tensor:
    drawn = torch.rand(batch.num_atoms, SETS, generator=torch.Generator().manual_seed(2), dtype=torch.float64) - 0.5
    drawn[:, 1] += 0.1  # a set with a background
    for s in (batch.pbc.sum(-1) == 2).nonzero()[:, 0].tolist():
        own = batch.system_index == s
        drawn[own] -= drawn[own].mean(0)
    return drawn


def exact(prior, batch, charges):
    """Energies, and their gradients in positions, charges and strain."""
    vectors = prior.vectors_for(batch, charges, torch.zeros((), dtype=torch.bool))
    strain = torch.zeros(batch.num_systems, 3, 3, dtype=torch.float64, requires_grad=True)
    x, q = (values.clone().requires_grad_() for values in (batch.positions, charges))
    places = strained_positions(x, strain, batch.system_index)
    cell = strained_cell(batch.cell, strain)
    energies = prior.config.strength * reference.reciprocal_energies(vectors, batch, places, cell, q, prior.weights)
    return energies.detach(), *torch.autograd.grad(energies.sum(), (x, q, strain))


def difference(found, wanted) -> float:
    parts = zip((found.energies, found.slope, found.pull, found.virial), wanted, strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in parts)


def overflow() -> torch.Tensor:
    return torch.zeros((), dtype=torch.bool)


KINDS = {"bulk": [True], "slab": [SLAB], "several": [True, False, SLAB, True], "crystals": [True, False, True]}


@pytest.mark.parametrize("pbcs", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_differentiable_sum(pbcs, dtype, method):
    prior, batch = prior_of(weights=(1.0, 0.5, 2.0), periodic=method), batch_of(*pbcs)
    charges = charges_of(batch)
    wanted = exact(prior, batch, charges)
    found = differentiate_reciprocal(prior, batch, charges.to(dtype), overflow(), stress=True)
    assert difference(found, wanted) < (1e-12 if dtype == torch.float64 else 3e-6)
    assert found.energies.dtype == found.slope.dtype == torch.float64
    assert found.pull.dtype == dtype


@pytest.mark.parametrize("method", METHODS)
def test_sums_by_parts_give_the_same(monkeypatch, method):
    prior, batch = prior_of(periodic=method), batch_of(True)
    charges = charges_of(batch)
    wanted = exact(prior, batch, charges)
    for module in (reciprocal, reference):
        monkeypatch.setattr(module, "MOST_PHASES", 50 * batch.num_atoms if method == "ewald" else 8**3 * SETS * 2)
    found, again = (
        differentiate_reciprocal(prior, batch, charges, overflow(), stress=True),
        exact(prior, batch, charges),
    )
    assert prior.kept.latest.count > 100
    assert difference(found, wanted) < 1e-12
    assert difference(found, again) < 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pbcs", [KINDS["crystals"], KINDS["several"]], ids=["crystals", "several"])
def test_with_shapes_that_are_fixed(monkeypatch, pbcs, method):
    """As in a capture: several systems pass over all atoms, and nothing is read."""
    prior, batch = prior_of(periodic=method), batch_of(*pbcs)
    charges = charges_of(batch)
    wanted, flag = exact(prior, batch, charges), overflow()
    for module in (ewald, reference, base):
        monkeypatch.setattr(module, "shapes_are_fixed", lambda positions: True)
    found = differentiate_reciprocal(prior, batch, charges, flag, stress=True)
    assert difference(found, wanted) < 1e-12
    assert not flag


@pytest.mark.parametrize("method", METHODS)
def test_energies_alone(method):
    prior = prior_of(periodic=method)
    for pbcs in ((True,), (SLAB,)):
        batch = batch_of(*pbcs)
        charges = charges_of(batch)
        whole = differentiate_reciprocal(prior, batch, charges, overflow(), stress=True)
        alone = differentiate_reciprocal(prior, batch, charges, overflow(), forces=False)
        torch.testing.assert_close(alone.energies, whole.energies, rtol=1e-13, atol=1e-13)
        assert not alone.slope.any()
        assert not alone.pull.any()


@pytest.mark.parametrize("method", METHODS)
def test_systems_without_atoms(method):
    empty = System.create(np.zeros((0, 3)), [], 6.0 * np.eye(3), True)
    batch = Batch.from_systems([empty, *batch_of(True).systems()])
    found = differentiate_reciprocal(prior_of(periodic=method), batch, charges_of(batch), overflow(), stress=True)
    assert not found.virial[0].any()
    assert found.energies.isfinite().all()
