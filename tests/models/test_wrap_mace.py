"""MACE with random weights through the adapter of docs/wrap_a_model.md, against MACE's own calculator."""

import copy
import re
import warnings
from pathlib import Path

import ase.build
import numpy as np
import pytest
import torch

from torchmdx import Calculator, CapturedStep, System, evaluate
from torchmdx.evaluation.conformance import check

pytest.importorskip("e3nn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.serialization.add_safe_globals([slice])  # e3nn's constants
    modules = pytest.importorskip("mace.modules")
    calculators = pytest.importorskip("mace.calculators")
    from e3nn import o3

PAGE = Path(__file__).parents[2] / "docs" / "wrap_a_model.md"


def adapter():
    """`wrap_mace` as the page defines it."""
    (block,) = re.findall(r"```python\n(import torch\nimport torchmdx\n\n\nclass Mace.*?)```", PAGE.read_text(), re.S)
    names: dict = {}
    exec(block, names)
    return names["wrap_mace"]


@pytest.fixture(scope="module")
def mace():
    torch.manual_seed(0)
    interaction = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    return modules.ScaleShiftMACE(
        r_max=4.0, num_bessel=8, num_polynomial_cutoff=6, max_ell=2, interaction_cls=interaction,
        interaction_cls_first=interaction, num_interactions=2, num_elements=3, hidden_irreps=o3.Irreps("16x0e+16x1o"),
        MLP_irreps=o3.Irreps("16x0e"), gate=torch.nn.functional.silu, atomic_energies=np.array([-14.0, -1e3, -2e3]),
        avg_num_neighbors=8.0, atomic_numbers=[1, 6, 8], correlation=2, radial_type="bessel", atomic_inter_scale=2.0,
        atomic_inter_shift=0.1,
    ).double()  # fmt: skip


def structures():
    crystal = ase.build.bulk("CO", "zincblende", a=4.2)
    crystal.rattle(0.1, seed=1)
    ethanol = ase.build.molecule("CH3CH2OH")
    ethanol.rattle(0.1, seed=2)
    return [ethanol, crystal]


def test_energies_forces_and_stress_are_those_of_its_own_calculator(mace):
    potential = adapter()(mace)
    theirs = calculators.MACECalculator(models=[copy.deepcopy(mace)], device="cpu", default_dtype="float64")
    for atoms in structures():
        atoms.calc = theirs
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        stress = atoms.get_stress() if atoms.pbc.any() else None
        atoms.calc = Calculator(potential, dtype="float64")
        assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-8)
        np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-8)
        if stress is not None:
            np.testing.assert_allclose(atoms.get_stress(), stress, atol=1e-9)


def test_it_meets_the_requirements(mace):
    found = check(adapter()(mace), verbose=False)
    # e3nn's compiled parts hold constants, which have no copy without values.
    assert set(found.failed) <= {"host", "training"}, str(found)


@pytest.mark.gpu
def test_a_step_is_captured(mace):
    potential = adapter()(copy.deepcopy(mace).float().cuda())
    for atoms in structures():
        step = CapturedStep(potential, System.from_ase(atoms), mode="graph")
        for seed in range(5):
            atoms.rattle(0.02, seed=seed)
            wanted = evaluate(adapter()(mace), System.from_ase(atoms))
            np.testing.assert_allclose(step(atoms.positions).forces, wanted.forces, atol=1e-4)
