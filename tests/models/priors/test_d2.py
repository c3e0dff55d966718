import math

import numpy as np
import pytest
from model_kinds import d2
from prior_formulas import STRUCTURES, only, summed

from torchmdx import System, evaluate


@pytest.mark.parametrize("name", STRUCTURES)
def test_d2_is_its_formula(name, request):
    atoms, config = request.getfixturevalue(name), d2(cutoff=5.0)

    def energy(i, j, r):
        (a, b), (p, q) = ([table[z] for z in atoms.numbers[[i, j]]] for table in (config.c6, config.radii))
        return -math.sqrt(a * b) / r**6 / (1 + math.exp(-20 * (r / (p + q) - 1)))

    wanted = summed(atoms, 5.0, energy)
    assert wanted.max() < -1e-3
    np.testing.assert_allclose(evaluate(only(config), System.from_ase(atoms)).energies, wanted, rtol=1e-9)


def test_d2_knows_the_elements_of_its_table(ethanol):
    potential = only(d2(c6=(0.0, 1.0, 1, 1, 1, 1, 1), radii=(0, 1, 1, 1, 1, 1, 1)))
    with pytest.raises(ValueError, match="the prior d2 knows atomic numbers up to 6, got 8 for atom 2"):
        evaluate(potential, System.from_ase(ethanol))
