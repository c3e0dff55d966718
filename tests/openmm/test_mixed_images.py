"""The region's own images left to the potential: against sums of whole systems, and against openmm-ml's embedding."""

import numpy as np
import openmm
import pytest
from mixed_systems import METHODS, mix, nonbonded_of
from mm_systems import SOLUTE, assert_same, energy_and_forces, ml_energy_and_forces, mm_system, selected, water_box
from model_kinds import coulomb
from openmm import app

from torchmdx.openmm import MixedRegion, create_mixed_regions

LATTICE = ("Ewald", "PME", "LJPME")


@pytest.fixture
def summing(make_potential):
    """A potential that sums its Coulomb energy over all images."""
    return make_potential(model="tensornet2", num_channels=8, num_layers=2, priors=[lambda: coulomb(periodic="ewald")])


def made(method, atoms=None):
    topology, positions = water_box() if atoms is None else selected(atoms)
    system = mm_system(topology, nonbondedCutoff=0.75, **METHODS[method])
    force = nonbonded_of(system)
    force.setEwaldErrorTolerance(1e-6)
    force.setUseDispersionCorrection(False)
    return system, topology, positions


def alone(method):
    """The force field's Coulomb energy of the isolated region, in the lattice, and the same without images."""
    system, topology, positions = made(method)
    region, own = selected(SOLUTE)
    region.setPeriodicBoxVectors(topology.getPeriodicBoxVectors())
    found = []
    for options in (METHODS[method], METHODS["no cutoff"]):
        alone = mm_system(region, nonbondedCutoff=0.75, **options)
        force = nonbonded_of(alone)
        force.setEwaldErrorTolerance(1e-6)
        for index in range(force.getNumParticles()):
            force.setParticleParameters(index, force.getParticleParameters(index)[0], 1.0, 0.0)
        found.append(energy_and_forces(alone, own))
    return system, topology, positions, found


@pytest.mark.nightly_for("Ewald", "LJPME")
@pytest.mark.parametrize("method", LATTICE)
def test_what_goes_is_the_lattice_sum_of_the_isolated_region(potential, method) -> None:
    """E(False) - E(True) is the region's sum in the lattice less the same without images, forces included."""
    system, topology, positions, (lattice, single) = alone(method)
    kept, left = (
        energy_and_forces(mix(system, topology, SOLUTE, potential, long_range=value), positions)
        for value in (False, True)
    )
    assert abs(lattice[0] - single[0]) > 0.01
    assert kept[0] - left[0] == pytest.approx(lattice[0] - single[0], abs=2e-3)
    wanted = np.zeros_like(kept[1])
    wanted[list(SOLUTE)] = lattice[1] - single[1]
    np.testing.assert_allclose(kept[1] - left[1], wanted, atol=0.05)


@pytest.mark.nightly
def test_a_potential_that_sums_over_images_has_them_by_default(summing, potential) -> None:
    system, topology, positions = made("PME")
    energies = {
        (name, value): energy_and_forces(mix(system, topology, SOLUTE, each, long_range=value), positions)[0]
        for name, each in (("summing", summing), ("short", potential))
        for value in (None, True, False)
    }
    assert energies["summing", None] == energies["summing", True] != energies["summing", False]
    assert energies["short", None] == energies["short", False] != energies["short", True]


@pytest.mark.nightly
def test_interpolation_and_difference(summing) -> None:
    """λ interpolates between the force field and the mixed system; a difference adds up to the mixed system."""
    system, topology, positions = made("PME")
    ends = [energy_and_forces(each, positions) for each in (system, mix(system, topology, SOLUTE, summing))]
    mixed = mix(system, topology, SOLUTE, summing, interpolate="lam")
    for value in (0.0, 0.3, 1.0):
        wanted = tuple((1 - value) * a + value * b for a, b in zip(*ends, strict=True))
        assert_same(energy_and_forces(mixed, positions, lam=value), wanted, 1e-7)
    split = mix(system, topology, SOLUTE, summing, difference_group=1)
    assert_same(energy_and_forces(split, positions), ends[1], 1e-7)
    assert sum(force.getForceGroup() == 1 for force in split.getForces()) > 2


def test_regions_each_leave_their_own_images(summing, potential) -> None:
    system, topology, positions = made("PME")
    options = dict(precision="float64", transport="python", device="cpu")
    regions = [MixedRegion(list(SOLUTE), summing), MixedRegion([22, 23, 24], potential)]
    found = energy_and_forces(create_mixed_regions(system, topology, regions, **options), positions)
    first = mix(system, topology, SOLUTE, summing)
    assert_same(found, energy_and_forces(mix(first, topology, [22, 23, 24], potential), positions), 1e-9)


def test_refusals(summing, potential) -> None:
    system, topology, _ = made("periodic reaction field")
    with pytest.raises(ValueError, match=r"long_range=True needs a periodic System with one .* got 0"):
        mix(system, topology, SOLUTE, potential, long_range=True)
    mix(system, topology, SOLUTE, summing)  # nothing to leave: a reaction field has no images
    system, topology, _ = made("PME")
    force = nonbonded_of(system)
    force.addGlobalParameter("charging", 1.0)
    force.addParticleParameterOffset("charging", 3, 1.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="charges in the region that are constant, .* 'charging'"):
        mix(system, topology, SOLUTE, potential, long_range=True)
    with pytest.raises(ValueError, match="electrostatic embedding has no long_range, got True"):
        mix(system, topology, SOLUTE, summing, embedding="electrostatic", long_range=True)


@pytest.mark.nightly
def test_without_a_box_it_makes_no_difference(potential) -> None:
    topology, positions = selected(range(25))
    system = mm_system(topology, nonbondedMethod=app.NoCutoff)
    found = [mix(system, topology, SOLUTE, potential, long_range=value) for value in (True, False)]
    assert len({openmm.XmlSerializer.serialize(each).count("<Force ") for each in found}) == 1
    assert ml_energy_and_forces(potential, *selected(SOLUTE), SOLUTE)[0] != 0
    assert_same(*(energy_and_forces(each, positions) for each in found), 1e-12)
