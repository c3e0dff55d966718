"""Replicas, batches, pressures and restraints."""

import numpy as np
import pytest
from ase.build import bulk, molecule

from tests.learning.test_learning_explore import ensemble
from torchmdx.learning.replicas import batches_of, dynamics_of, replicas_of, require_periodic
from torchmdx.learning.sections import ExploreSection
from torchmdx.structures.system import System

BOND = {"kind": "distance", "atoms": [0, 1], "reference": [1.0, 1.5], "stiffness": 5.0}


def systems():
    crystal = bulk("Cu", "fcc", a=3.8, cubic=True)
    return [System.from_ase(molecule("H2O")), System.from_ase(crystal), System.from_ase(molecule("CH4"))]


def test_every_structure_has_each_temperature_pressure_and_copy():
    explore = ExploreSection(temperatures=[300.0, 600.0], pressures=[1.0, 1e4], replicas=3)
    found = replicas_of(explore, 2, 0, 1)
    assert len(found) == 24 == len({(one.structure, one.temperature, one.pressure, one.copy) for one in found})
    assert len({one.seed for one in found}) == 24
    assert found == replicas_of(explore, 2, 0, 1)
    others = {one.seed for args in ((0, 2), (1, 1)) for one in replicas_of(explore, 2, *args)}
    assert not others & {one.seed for one in found}
    assert found[0].conditions == "300 K, 1 bar"


def test_batches_have_one_pressure_one_kind_of_cell_and_few_atoms():
    explore = ExploreSection(temperatures=[300.0], pressures=[1.0, 1e4], batch_atoms=8)
    replicas = replicas_of(explore, 3, 0, 1)
    found = batches_of(explore, systems(), replicas, "cpu")
    counts = [3, 4, 5]
    assert sorted(one.seed for batch in found for one in batch) == sorted(one.seed for one in replicas)
    for batch in found:
        assert len({(one.pressure, one.structure == 1) for one in batch}) == 1
        assert sum(counts[one.structure] for one in batch) <= 8


def test_pressures_need_crystals():
    explore = ExploreSection(pressures=[1.0])
    with pytest.raises(ValueError, match=r"explore\.pressures need structures that are periodic .* got water"):
        require_periodic(explore, systems()[:1], ["water"])
    require_periodic(explore, systems()[1:2], ["copper"])


def test_restraints_have_the_values_of_each_replica_and_are_those_of_their_structures():
    explore = ExploreSection(temperatures=[300.0], replicas=2, restraints=[BOND | {"structures": [0]}])
    batch = [one for one in replicas_of(explore, 3, 0, 1) if one.structure != 1]
    dynamics = dynamics_of(explore, ensemble(), systems(), batch)
    length = float(np.linalg.norm(systems()[0].positions[0] - systems()[0].positions[1]))
    expected = [2.5 * (length - 1.0) ** 2, 2.5 * (length - 1.5) ** 2, 0.0, 0.0]
    np.testing.assert_allclose(dynamics.snapshot().restraint_energy, expected, atol=1e-9)


def test_pressure_temperature_and_friction_are_those_of_the_replicas():
    explore = ExploreSection(temperatures=[300.0, 900.0], pressures=[5.0], friction=3.0, timestep=1.0)
    dynamics = dynamics_of(explore, ensemble(), systems()[1:2], replicas_of(explore, 1, 0, 1))
    motion = dynamics.motion
    assert motion.temperatures.tolist() == [300.0, 900.0]
    assert motion.timestep == 1.0
    assert motion.barostat.pressure == 5.0
    assert motion.integrator.friction == 3.0
