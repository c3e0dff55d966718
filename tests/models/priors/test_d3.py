"""D3, compared with the field's own program."""

import importlib.util
import sys

import numpy as np
import pytest
from ase.build import bulk, molecule
from model_kinds import SMALL_D3, needs_dispersion
from prior_formulas import only

from torchmdx import System, evaluate
from torchmdx.models.priors.d3 import D3Config
from torchmdx.structures.units import BOHR, HARTREE

DFTD3 = importlib.util.find_spec("dftd3") is not None


@needs_dispersion
@pytest.mark.skipif(not DFTD3, reason="needs the program it is compared with: pip install dftd3")
@pytest.mark.parametrize("name", ["C6H6", "CH3CH2OH", "NaCl", "crystal"])
def test_d3_is_that_of_simple_dftd3(name, request):
    from dftd3.interface import DispersionModel, RationalDampingParam

    far = 32.0
    if name == "crystal":
        atoms = request.getfixturevalue(name)
    else:
        atoms = bulk("NaCl", "rocksalt", 5.6, cubic=True) if name == "NaCl" else molecule(name)
        atoms.rattle(0.05, seed=3)
    config = D3Config(functional="pbe", cutoff=far)
    periodic = dict(lattice=atoms.cell.array / BOHR, periodic=atoms.pbc) if atoms.pbc.any() else {}
    model = DispersionModel(atoms.numbers, atoms.positions / BOHR, **periodic)
    model.set_realspace_cutoff(disp2=far / BOHR, disp3=1.0, cn=far / BOHR)
    parameters = RationalDampingParam(s6=config.s6, s8=config.s8, a1=config.a1, a2=config.a2, s9=0.0)
    theirs = model.get_dispersion(parameters, grad=True)
    result = evaluate(only(config), System.from_ase(atoms), stress=bool(periodic))
    # Ours ends smoothly where theirs breaks off, which a crystal feels.
    energy, force = (2e-4, 1e-4) if periodic else (1e-8, 5e-8)
    assert float(result.energy[0]) == pytest.approx(theirs["energy"] * HARTREE, abs=energy)
    np.testing.assert_allclose(result.forces, -theirs["gradient"] * HARTREE / BOHR, atol=force)
    if periodic:
        virial = result.stress[0] * atoms.get_volume()
        np.testing.assert_allclose(virial, theirs["virial"] * HARTREE, rtol=1e-3, atol=1e-3)


@needs_dispersion
def test_d3_takes_a_functional_by_name_or_its_numbers(ethanol):
    by_name, by_number = D3Config(functional="pbe"), D3Config(s6=1.0, s8=0.7875, a1=0.4289, a2=4.4407)
    energies = [float(evaluate(only(config), System.from_ase(ethanol)).energy[0]) for config in (by_name, by_number)]
    assert energies[0] == energies[1] < -0.05
    other = D3Config(functional="b3-lyp")
    assert (other.s8, other.a1, other.a2) == (1.9889, 0.3981, 4.4211)


def test_d3_without_its_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_dftd", None)
    with pytest.raises(ImportError, match=r"needs torch-dftd: pip install 'torchmdx\[dispersion\]'"):
        D3Config(functional="pbe")
    with pytest.raises(ImportError, match=r"needs torch-dftd: pip install 'torchmdx\[dispersion\]'"):
        only(D3Config(**SMALL_D3))
