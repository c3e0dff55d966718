"""Charges and dipoles in OpenMM against the ASE calculator, and the file of the reporter."""

import io

import numpy as np
import openmm
import pytest
from ase import Atoms
from mixed_systems import mix
from mm_systems import SOLUTE, mm_system, selected, water_box
from openmm import app, unit

from torchmdx import Calculator, save
from torchmdx.openmm import ChargeReporter, MixedRegion, add_potential, charges_of, create_mixed_regions, find
from torchmdx.structures.units import NANOMETER

EXACT = dict(device="cpu", precision="float64", transport="python")


@pytest.fixture
def charged(make_potential):
    return make_potential(model="tensornet2")


def particles(topology):
    system = openmm.System()
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    return system


def simulation_of(system, topology, positions):
    platform = openmm.Platform.getPlatformByName("Reference")
    simulation = app.Simulation(topology, system, openmm.VerletIntegrator(1e-5), platform)
    simulation.context.setPositions(positions)
    return simulation


def calculated(potential, topology, positions, atoms, cell=None, more=(), charge=0.0):
    """Charges (e) and dipole (e nm) of the ASE calculator; more: positions of link atoms, nm."""
    numbers = [atom.element.atomic_number for atom in topology.atoms()]
    places = np.vstack([positions[list(atoms)], *[np.array(each)[None] for each in more]]) * NANOMETER
    molecule = Atoms([numbers[i] for i in atoms] + [1] * len(more), places, cell=cell, pbc=cell is not None)
    molecule.calc = Calculator(potential, dtype="float64", device="cpu", charge=charge)
    charges = molecule.calc.get_property("charges", molecule)
    centre = molecule.numbers @ molecule.positions / molecule.numbers.sum()
    return charges, charges @ (molecule.positions - centre) / NANOMETER


def test_charges_and_dipole_are_those_of_the_calculator(charged):
    topology, positions = selected(SOLUTE)
    force = add_potential(particles(topology), topology, charged, charge=1, **EXACT)
    system = particles(topology)
    force = add_potential(system, topology, charged, charge=1, **EXACT)
    state = simulation_of(system, topology, positions).context.getState(positions=True)
    found = charges_of(force, state)
    charges, dipole = calculated(charged, topology, positions, SOLUTE, charge=1)
    np.testing.assert_allclose(found.charges.value_in_unit(unit.elementary_charge), charges, atol=1e-9)
    assert charges.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found.dipole.value_in_unit(unit.elementary_charge * unit.nanometer), dipole, atol=1e-9)
    debye = found.dipole.value_in_unit(unit.debye)
    np.testing.assert_allclose(debye, dipole * 48.032, rtol=1e-3)


def test_a_region_with_a_link_atom_in_a_box(charged, tmp_path):
    save(charged, tmp_path / "charged.safetensors")
    topology, positions = water_box()
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    region = tuple(range(10, 14))
    mixed = mix(system, topology, region, tmp_path / "charged.safetensors", link_atoms=[(10, 8, 0.11)])
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(mixed))
    simulation = simulation_of(again, topology, positions)
    bond = positions[8] - positions[10]
    link = positions[10] + 0.11 * bond / np.linalg.norm(bond)
    cell = np.array(topology.getPeriodicBoxVectors().value_in_unit(unit.angstrom))
    charges, dipole = calculated(charged, topology, positions, region, cell, [link])
    found = charges_of(find(again)[0], simulation.context.getState(positions=True))
    np.testing.assert_allclose(found.charges._value, charges, atol=1e-9)
    np.testing.assert_allclose(found.dipole._value, dipole, atol=1e-9)


def test_the_file(charged, tmp_path):
    topology, positions = water_box()
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    mixed = mix(system, topology, range(10, 14), charged, link_atoms=True)
    simulation = simulation_of(mixed, topology, positions)
    text = io.StringIO()
    simulation.reporters += [ChargeReporter(tmp_path / "charges.csv", 2), ChargeReporter(text, 3)]
    simulation.step(4)
    found = charges_of(find(mixed)[0], simulation.context.getState(positions=True))
    lines = (tmp_path / "charges.csv").read_text().splitlines()
    columns = "Step,Time (ps),Dipole x (debye),Dipole y (debye),Dipole z (debye),Dipole (debye)"
    columns += "".join(f",Charge {name} (e)" for name in ("10", "11", "12", "13", "10-8"))
    assert lines[0] == columns
    values = np.array([[float(word) for word in line.split(",")] for line in lines[1:]])
    assert values[:, 0].tolist() == [2, 4]
    np.testing.assert_allclose(values[-1, 2:5], 48.0320471 * found.dipole._value, rtol=1e-4)  # 1 e nm in debye
    np.testing.assert_allclose(values[:, 1], [2e-5, 4e-5])
    np.testing.assert_allclose(np.linalg.norm(values[:, 2:5], axis=1), values[:, 5], rtol=1e-4)
    np.testing.assert_allclose(values[:, 6:].sum(1), 0, atol=1e-5)
    np.testing.assert_allclose(values[-1, 6:], found.charges._value, atol=1e-5)
    assert [line.split(",")[0] for line in text.getvalue().splitlines()] == ["Step", "3"]
    simulation.reporters = [ChargeReporter(str(tmp_path / "charges.csv"), 1, append=True)]
    simulation.step(1)
    assert (tmp_path / "charges.csv").read_text().splitlines()[:-1] == lines


def test_no_dipole_of_a_periodic_system(charged, crystal):
    from boxes import context_of, empty_system, topology_of

    crystal.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)
    system = empty_system(crystal)
    force = add_potential(system, topology_of(crystal), charged, **EXACT)
    found = charges_of(force, context_of(system, crystal).getState(positions=True))
    assert found.dipole is None
    assert len(found.charges) == 3


def test_refusals(charged, potential):
    topology, positions = selected(SOLUTE)
    force = add_potential(particles(topology), topology, potential, **EXACT)
    with pytest.raises(ValueError, match="charges need a potential that predicts them, such as a TensorNet2, got one"):
        ChargeReporter(io.StringIO(), 1, force)
    with pytest.raises(ValueError, match="reportInterval must be at least 1 step, got 0"):
        ChargeReporter(io.StringIO(), 0)
    regions = [MixedRegion(range(6), charged, link_atoms=True), MixedRegion(range(6, 22), charged, link_atoms=True)]
    both = create_mixed_regions(mm_system(topology), topology, regions, **EXACT)
    for system, message in ((both, "has one potential; it has 2"), (mm_system(topology), "it has 0")):
        simulation = simulation_of(system, topology, positions)
        simulation.reporters.append(ChargeReporter(io.StringIO(), 1))
        with pytest.raises(ValueError, match=message):
            simulation.step(1)
    text = io.StringIO()
    simulation = simulation_of(both, topology, positions)
    simulation.reporters.append(ChargeReporter(text, 1, find(both)[1]))
    simulation.step(1)
    assert "Charge 6-4 (e)" in text.getvalue()
