"""A potential with predicted charges, and a small box, for the treatments of the Coulomb energy."""

import pytest
from ase import Atoms
from ase.build import molecule
from model_kinds import coulomb

from torchmdx import Potential, save
from torchmdx.models.model_card import Card


@pytest.fixture
def charged(make_potential) -> Potential:
    potential = make_potential(model="tensornet2", priors=[lambda: coulomb(cutoff=6.0)])
    potential.card = Card(name="ionic")
    return potential


@pytest.fixture
def checkpoint(charged, tmp_path):
    save(charged, tmp_path / "charged.safetensors")
    return tmp_path / "charged.safetensors"


@pytest.fixture
def box() -> Atoms:
    atoms = molecule("CH3CH2OH", cell=[7.0, 7.5, 8.0], pbc=True)
    atoms.rattle(0.05, seed=1)
    return atoms
