"""The fast model that torchmdx comes with for organic-1: what it is, and how near its forces are."""

import json

import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.io import read
from structures import DATA

import torchmdx
from torchmdx import Batch, System
from torchmdx.checkpoints.locate import origin_at
from torchmdx.checkpoints.potentials import FAST_MODELS, shipped
from torchmdx.dynamics import Dynamics

RECIPE = DATA.parents[1] / "recipes" / "organic_1_fast"
MOST_BYTES = 600_000


@pytest.fixture(scope="module")
def both():
    return tuple(torchmdx.load(name, dtype=torch.float32) for name in ("organic-1", "organic-1-fast"))


def test_it_is_small_free_and_of_organic_1(both):
    potential, fast = both
    assert FAST_MODELS == {"organic-1": "organic-1-fast"}
    assert shipped()["organic-1-fast"].stat().st_size < MOST_BYTES
    assert (fast.card.name, fast.card.licence) == ("organic-1-fast", "MIT")
    assert origin_at("organic-1").sha256 in fast.card.description
    assert fast.card.elements == potential.card.elements
    assert set(potential.card.charges) <= set(fast.card.charges)
    assert fast.cutoff == 3.5
    record = json.loads((RECIPE / "distillation.json").read_text())
    assert record["asked"]["potential"]["sha256"] == origin_at("organic-1").sha256


def test_its_forces_are_near_where_it_was_not_trained(both):
    atoms = [read(DATA / "alanine_dipeptide.pdb"), molecule("CH3CONH2"), molecule("C5H5N"), molecule("CH3SCH3")]
    for one in atoms:
        one.set_initial_charges(None)
        one.rattle(0.02, seed=3)
    batch = Batch.from_systems([System.from_ase(one, 0.0) for one in atoms])
    whole, near = (torchmdx.CapturedStep(potential, batch)(batch.positions).forces for potential in both)
    relative = np.sqrt(((near - whole) ** 2).mean() / (whole**2).mean())
    assert relative < 0.09
    recorded = json.loads((RECIPE / "accuracy.json").read_text())
    assert recorded["relative"] < 0.12, "of molecules with more functional groups"


def test_outer_steps_of_2_fs_conserve_the_energy(both):
    potential, fast = both
    system = System.from_ase(read(DATA / "alanine_dipeptide.pdb"))
    settings = dict(integrator="verlet", timestep=1.0, temperature=300.0, seed=2, hydrogen_mass=3.0)
    dynamics = Dynamics(potential, system, fast=fast, inner=2, **settings)
    energies = [one.energy + one.kinetic_energy for one in dynamics.snapshots(400, every=2)]
    assert np.std(energies) < 0.01  # eV, of 1.6 eV of kinetic energy
