"""Several devices share the atoms of an OpenMM force, in the transport through Python."""

import json

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, box_of, context_of, empty_system, expected, found, topology_of  # noqa: E402
from openmm import unit  # noqa: E402

from torchmdx import save  # noqa: E402
from torchmdx.lammps.example import water  # noqa: E402
from torchmdx.models.ensemble import Ensemble  # noqa: E402
from torchmdx.openmm import add_potential  # noqa: E402
from torchmdx.openmm.settings import ForceSettings  # noqa: E402
from torchmdx.step import division  # noqa: E402

TWO = ["cpu", "cpu"]


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=8, num_layers=1, cutoff=3.0)


@pytest.fixture(autouse=True)
def small_structures_are_divided(monkeypatch):
    monkeypatch.setattr(division, "WORTH_DIVIDING", 1.0)


@pytest.fixture
def box():
    return water(216)


def system_of(potential, structure, **options):
    system = empty_system(structure)
    options = {**dict(devices=TWO, precision="float64"), **options}
    return system, add_potential(system, topology_of(structure), potential, **options)


def test_energies_and_forces_are_those_of_one_device(potential, box, tmp_path):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    system, force = system_of(path, box)
    assert (force.transport, force.why) == ("python", "several devices share the atoms")
    assert force.report() is None
    context = context_of(system, box)
    assert_same(found(context), expected(potential, box))
    assert np.prod(force.report().grid) == 2
    assert force.num_recoveries == 0
    moved = box.copy()
    moved.set_cell(box.cell.array * 1.02, scale_atoms=True)
    context.setPeriodicBoxVectors(*box_of(moved))
    context.setPositions(moved.positions / 10)
    assert_same(found(context), expected(potential, moved))
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    assert_same(found(context_of(again, box)), expected(potential, box))


@pytest.mark.nightly
def test_a_run_conserves_energy(potential, box):
    system, force = system_of(potential, box)
    context = openmm.Context(system, openmm.VerletIntegrator(0.0005), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(box.positions / 10)
    context.setVelocitiesToTemperature(600, 1)
    energies = []
    for _ in range(5):
        state = context.getState(energy=True)
        total = state.getPotentialEnergy() + state.getKineticEnergy()
        energies.append(total.value_in_unit(unit.kilojoule_per_mole))
        context.getIntegrator().step(20)
    assert np.ptp(energies) < 0.02 * len(box)
    assert force.report().assignments > 1


def test_bad_settings(potential, box):
    for options, message in (
        ({"device": "cpu"}, "device or devices can be given, not both"),
        ({"devices": []}, "devices must be a list of one or more devices"),
        ({"devices": ["cpu", "cuda:99"]}, "device 'cuda:99' is not available"),
    ):
        with pytest.raises(ValueError, match=message):
            system_of(potential, box, **options)
    with pytest.raises(ImportError, match="transport 'native' cannot be used: several devices need the transport"):
        system_of(potential, box, transport="native")
    with pytest.raises(ValueError, match="an ensemble can't be divided"):
        system_of(Ensemble([potential, potential]), box)


def test_settings_of_a_machine_with_more_devices_can_be_read(potential, box):
    _, force = system_of(potential, box)
    settings = force.evaluator.settings
    assert ForceSettings.from_text(settings.to_text()) == settings
    values = json.loads(settings.to_text()) | {"devices": ["cpu", "cuda:97"]}
    assert ForceSettings.from_text(json.dumps(values)).devices == ()
    del values["devices"]  # a file of an earlier version
    assert ForceSettings.from_text(json.dumps(values)).devices == ()
