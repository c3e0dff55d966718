"""Electrostatic embedding: against force fields with the predicted charges, by differences, and conserved in NVE."""

import numpy as np
import openmm
import pytest
from mixed_systems import METHODS, mix, nonbonded_of
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system, selected, water_box
from openmm import app, unit
from test_charge_reporter import calculated
from test_link_atoms import slopes

from torchmdx import Ensemble, save
from torchmdx.openmm import charges_of, find, load_system
from torchmdx.openmm.native import native

WATER = (25, 26, 27)
SYSTEMS = ("no cutoff", "reaction field", "periodic reaction field", "Ewald", "PME", "LJPME")
ELECTROSTATIC = dict(embedding="electrostatic")


@pytest.fixture
def charged(make_potential):
    """With charges that differ between atoms by tenths of e."""
    potential = make_potential(model="tensornet2", num_channels=8, num_layers=1)
    return potential


def made(method):
    options = METHODS[method]
    periodic = options["nonbondedMethod"] not in (app.NoCutoff, app.CutoffNonPeriodic)
    topology, positions = water_box() if periodic else cluster(12)
    return mm_system(topology, nonbondedCutoff=0.75, **options), topology, positions


def box_of(topology):
    box = topology.getPeriodicBoxVectors()
    return None if box is None else np.array(box.value_in_unit(unit.angstrom))


@pytest.mark.nightly_for("0-PME", "Ewald", "LJPME", "1-periodic reaction field", "1-reaction field")
@pytest.mark.parametrize("method", SYSTEMS)
@pytest.mark.parametrize("charge", [0, 1])
def test_energy_is_that_of_a_force_field_with_the_predicted_charges(charged, method, charge) -> None:
    """Mechanical embedding in a System whose charges of the region are those of the ASE calculator."""
    system, topology, positions = made(method)
    force = nonbonded_of(system)
    force.setEwaldErrorTolerance(1e-6)
    first, *others = force.getParticleParameters(0)
    force.setParticleParameters(0, first._value + charge, *others)
    embedded = mix(system, topology, SOLUTE, charged, charge=charge, **ELECTROSTATIC)
    charges, _ = calculated(charged, topology, positions, SOLUTE, box_of(topology), charge=charge)
    assert np.ptp(charges) > 0.01
    for index in SOLUTE:
        _, *others = force.getParticleParameters(index)
        force.setParticleParameters(index, charges[index], *others)
    wanted = energy_and_forces(mix(system, topology, SOLUTE, charged, charge=charge), positions)
    found = energy_and_forces(embedded, positions)
    assert found[0] == pytest.approx(wanted[0], rel=1e-6, abs=1e-3)
    # Forces on the surroundings are those of fixed charges; on the region they have the derivatives of its charges.
    scale = np.abs(wanted[1]).max()
    assert np.abs(found[1][22:] - wanted[1][22:]).max() < 1e-5 * scale
    assert np.abs(found[1][:22] - wanted[1][:22]).max() > 1e-6 * scale


def test_every_transport_sees_the_surroundings(charged) -> None:
    if native.unavailable(cuda=False) is not None:
        pytest.skip("needs a C++ compiler")
    system, topology, positions = made("no cutoff")
    both = (mix(system, topology, SOLUTE, charged, transport=name, **ELECTROSTATIC) for name in ("python", "native"))
    assert_same(*(energy_and_forces(each, positions) for each in both), 1e-9)


@pytest.mark.nightly_for("PME-python", "PME-native")
@pytest.mark.parametrize("transport", ["python", "native"])
@pytest.mark.parametrize("method", ["no cutoff", "PME"])
def test_forces_are_the_slopes_of_the_whole_energy(charged, method, transport) -> None:
    if transport == "native" and native.unavailable(cuda=False) is not None:
        pytest.skip("needs a C++ compiler")
    system, topology, positions = made(method)
    mixed = mix(system, topology, (*SOLUTE, *WATER), charged, transport=transport, **ELECTROSTATIC)
    near = (0, 5, 8, 17, 25, 26, 28, 29)
    forces = energy_and_forces(mixed, positions)[1]
    assert np.abs(slopes(mixed, positions, near) - forces[list(near)]).max() < 3e-5 * np.abs(forces).max()


def test_without_surroundings_nothing_is_added(charged) -> None:
    topology, positions = selected(SOLUTE)
    ends = [mix(mm_system(topology), topology, SOLUTE, charged, **more) for more in (ELECTROSTATIC, {})]
    assert_same(*(energy_and_forces(end, positions) for end in ends), 1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["no cutoff", "PME"])
def test_energy_is_conserved(charged, method) -> None:
    """An untrained potential of weak forces beside springs that keep the region together."""
    charged.scale.fill_(1e-3)
    system, topology, positions = made(method)
    region = WATER
    springs = openmm.HarmonicBondForce()
    for first, second in ((25, 26), (25, 27), (26, 27)):
        springs.addBond(first, second, float(np.linalg.norm(positions[first] - positions[second])), 2e5)
    springs.setName("springs")
    system.addForce(springs)
    mixed = mix(system, topology, region, charged, keep=["springs"], **ELECTROSTATIC)
    context = openmm.Context(mixed, openmm.VerletIntegrator(1e-4), openmm.Platform.getPlatformByName("CPU"))
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, 10, 20)
    context.setVelocitiesToTemperature(300, 1)
    totals = []
    for _ in range(15):
        context.getIntegrator().step(10)
        state = context.getState(energy=True)
        totals.append(state.getPotentialEnergy()._value + state.getKineticEnergy()._value)
    assert np.ptp(totals) < 5e-3 * state.getKineticEnergy()._value


@pytest.mark.parametrize("transport", ["python", "native"])
def test_copies_xml_handle_and_charges(charged, tmp_path, transport) -> None:
    if transport == "native" and native.unavailable(cuda=False) is not None:
        pytest.skip("needs a C++ compiler")
    save(charged, tmp_path / "charged.safetensors")
    system, topology, positions = made("PME")
    mixed = mix(system, topology, SOLUTE, tmp_path / "charged.safetensors", transport=transport, **ELECTROSTATIC)
    again = load_system(openmm.XmlSerializer.serialize(mixed))
    assert_same(energy_and_forces(again, positions), energy_and_forces(mixed, positions), 1e-12)
    (found,) = find(again)
    assert found.atoms == SOLUTE
    assert found.embedding == "electrostatic"
    assert "surroundings" in str(found.report().plan)
    context = openmm.Context(again, openmm.VerletIntegrator(1), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    charges, _ = calculated(charged, topology, positions, SOLUTE, box_of(topology))
    np.testing.assert_allclose(charges_of(found, context.getState(positions=True)).charges._value, charges, atol=1e-9)


def test_many_particles_are_requested_in_their_order(charged, monkeypatch) -> None:
    from torchmdx.openmm import transport_python

    system, topology, positions = made("PME")
    wanted = energy_and_forces(mix(system, topology, WATER, charged, **ELECTROSTATIC), positions)
    monkeypatch.setattr(transport_python, "MOST_INDEXED", 10)
    assert_same(energy_and_forces(mix(system, topology, WATER, charged, **ELECTROSTATIC), positions), wanted, 1e-9)


def test_a_barostat_changes_the_box(charged) -> None:
    system, topology, positions = made("PME")
    system.addForce(openmm.MonteCarloBarostat(1, 300, 1))
    mixed = mix(system, topology, WATER, charged, **ELECTROSTATIC)
    context = openmm.Context(
        mixed, openmm.LangevinMiddleIntegrator(300, 1, 1e-5), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(positions)
    context.getIntegrator().step(3)
    assert np.isfinite(context.getState(energy=True).getPotentialEnergy()._value)


# Refusals


def with_force(system, force):
    system.addForce(force)
    return system


def offset(system):
    force = nonbonded_of(system)
    force.addGlobalParameter("s", 1.0)
    force.addParticleParameterOffset("s", 30, 0.1, 0, 0)
    return system


def exception(system):
    nonbonded_of(system).addException(3, 30, 0.0, 1.0, 0.0)
    return system


def solvated(system):
    force = openmm.GBSAOBCForce()
    for _ in range(system.getNumParticles()):
        force.addParticle(0.1, 0.2, 0.8)
    return with_force(system, force)


def bare(system):
    system.removeForce([type(f).__name__ for f in system.getForces()].index("NonbondedForce"))
    return system


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (offset, {}, "needs constant nonbonded parameters, got parameter offsets"),
        (exception, {}, "without nonbonded exceptions to other particles, got one between 3 and 30"),
        (solvated, {}, "needs explicit solvent or none, got GBSAOBCForce, which uses MM charges"),
        (bare, {}, "needs a System with one NonbondedForce, got 0"),
        (None, dict(interpolate="lam"), "electrostatic embedding has no interpolate, got 'lam'"),
        (None, dict(difference_group=3), "electrostatic embedding has no difference_group, got 3"),
        (None, dict(link_atoms=True), "electrostatic embedding has no link_atoms, got True"),
        (None, dict(scale_parameter="s"), "electrostatic embedding has no scale_parameter, got 's'"),
        (None, dict(audit_every=10), "electrostatic embedding has no audit_every, got 10"),
        (None, dict(skin=0.5), "electrostatic embedding has no skin, got 0.5"),
        (None, dict(embedding="polarisable"), "embedding must be one of mechanical, electrostatic, got 'polarisable'"),
    ],
)
def test_what_it_does_not_have(charged, change, options, message) -> None:
    topology, _ = cluster(4)
    system = mm_system(topology)
    if change is not None:
        change(system)
    with pytest.raises(ValueError, match=message):
        mix(system, topology, SOLUTE, charged, **{**ELECTROSTATIC, **options})


def test_potentials_without_charges_and_ensembles(potential, charged) -> None:
    topology, _ = cluster(2)
    with pytest.raises(ValueError, match="a potential that predicts charges, such as a TensorNet2, got one without"):
        mix(mm_system(topology), topology, SOLUTE, potential, **ELECTROSTATIC)
    with pytest.raises(ValueError, match="needs a single potential, got an Ensemble"):
        mix(mm_system(topology), topology, SOLUTE, Ensemble([charged, charged]), **ELECTROSTATIC)


def test_one_region_and_its_box(charged) -> None:
    system, topology, _ = made("PME")
    with pytest.raises(ValueError, match="in a periodic System needs periodic=True or None, got False"):
        mix(system, topology, SOLUTE, charged, periodic=False, **ELECTROSTATIC)
    first = mix(system, topology, SOLUTE, charged, **ELECTROSTATIC)
    with pytest.raises(ValueError, match="a System can have one electrostatically embedded region, got a second"):
        mix(first, topology, WATER, charged, **ELECTROSTATIC)
    assert len(find(mix(first, topology, WATER, charged))) == 2


def test_nan_is_an_error(charged) -> None:
    system, topology, positions = made("no cutoff")
    mixed = mix(system, topology, SOLUTE, charged, **ELECTROSTATIC)
    for atom, message in ((4, "must be finite, got nan of atom 4"), (30, "must be finite, got NaN or infinity")):
        broken = positions.copy()
        broken[atom, 1] = np.nan
        with pytest.raises(openmm.OpenMMException, match=message):
            energy_and_forces(mixed, broken)
