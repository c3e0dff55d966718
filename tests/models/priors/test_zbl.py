import math

import numpy as np
import oracles
import pytest
from ase.data import covalent_radii
from prior_formulas import STRUCTURES, only, summed

from torchmdx import System, evaluate
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.structures.units import COULOMB


def screening(x):
    terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))
    return sum(a * math.exp(-b * x) for a, b in terms)


@pytest.mark.parametrize("name", STRUCTURES)
def test_zbl_is_its_formula(name, request):
    atoms = request.getfixturevalue(name)
    z = atoms.numbers

    def energy(i, j, r):
        x = r * (z[i] ** 0.23 + z[j] ** 0.23) / (0.8854 * 0.529177210544)
        return COULOMB * z[i] * z[j] / r * screening(x) * oracles.cut(r, 3.5)

    result = evaluate(only(ZBLConfig(cutoff=3.5)), System.from_ase(atoms))
    wanted = summed(atoms, 3.5, energy)
    assert wanted.min() > 1e-4
    np.testing.assert_allclose(result.energies, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", ["ethanol", "wire"])
def test_zbl_of_covalent_radii_is_its_formula(name, request):
    atoms = request.getfixturevalue(name)
    atoms.set_cell(atoms.cell.array * 0.8)
    atoms.positions *= 0.8
    z = atoms.numbers

    def energy(i, j, r):
        x = r * (z[i] ** 0.3 + z[j] ** 0.3) / 0.24
        u = r / (covalent_radii[z[i]] + covalent_radii[z[j]])
        end = 1 - 28 * u**6 + 48 * u**7 - 21 * u**8 if u < 1 else 0.0
        return 10.0 * z[i] * z[j] / r * screening(x) * end

    config = ZBLConfig(cutoff=3.0, radii="covalent", length=0.24, exponent=0.3, strength=10.0)
    result = evaluate(only(config), System.from_ase(atoms))
    wanted = summed(atoms, 3.0, energy)
    assert wanted.max() > 1e-2
    np.testing.assert_allclose(result.energies, wanted, rtol=1e-9, atol=1e-12)


def test_nuclei_on_top_of_each_other_repel_as_bare_charges():
    near = 1e-3
    result = evaluate(only(ZBLConfig()), System.create([[0, 0, 0], [0, 0, near]], [6, 8]))
    assert float(result.energy[0]) == pytest.approx(COULOMB * 48 / near, rel=2e-2)
