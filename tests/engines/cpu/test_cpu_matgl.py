"""Potentials of matgl in C: a gated head, features without an activation, atoms that are not their own neighbours."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from compiled_runs import batch_of, exact, run
from matgl_folders import DATA, NAMES
from released_files import released

import torchmdx
from torchmdx.engines.choose import choose_engine
from torchmdx.engines.cpu import build

pytestmark = pytest.mark.skipif(build.tensornet_library() is None, reason="needs a C compiler")
RELEASED = ("TensorNet-MatPES-PBE-v2025.1-PES", "TensorNet-MatPES-r2SCAN-v2025.1-PES")


def crystals():
    """Metals, oxides and salts, cells of one atom, a slab and an atom alone, of elements in every matgl fixture."""
    found = [bulk("Cu"), bulk("Fe"), bulk("Cu", cubic=True), bulk("NaCl", "rocksalt", a=5.64) * 2, Atoms("Fe")]
    found += [bulk("LiO", "cesiumchloride", a=3.1) * 2, bulk("FeO", "rocksalt", a=4.3), fcc111("Cu", (2, 2, 3), 3.0)]
    for atoms in found:
        atoms.rattle(0.06, seed=len(atoms))
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.02 * np.diag([1, -1, 0.5])), scale_atoms=True)
    return found


@pytest.mark.nightly_for("gauss", "bessel-3")
@pytest.mark.parametrize("name", NAMES)
def test_potentials_of_matgl(name):
    assert_crystals_are_exact(torchmdx.load(DATA / name, dtype=torch.float32))


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_potential_of_matgl(name):
    assert_crystals_are_exact(torchmdx.load(released(name), dtype=torch.float32), 5e-6)  # 3.9e-6 for LiO


def assert_crystals_are_exact(potential, most=3e-6):
    for atoms in crystals():
        batch = batch_of(atoms, dtype=torch.float64)
        engine, _ = choose_engine(potential, batch, stress=True, precision="float32")
        assert engine.name == "compiled"
        found, wanted = run(potential, batch, engine=engine), exact(potential, batch)
        # Forces of a cell of one atom vanish: 0.1 eV/Å is the size of others.
        error = float((found.forces - wanted.forces).norm())
        assert error < most * max(0.1, float(wanted.forces.norm())), atoms
        assert float((found.energy - wanted.energy).abs()) < 3e-6 * len(atoms), atoms
        if all(atoms.pbc):
            assert float((found.stress - wanted.stress).norm()) < 1e-5 * (0.05 + float(wanted.stress.norm())), atoms
