"""Potentials found in a System: as added, copied, read from XML, by openmm-ml, inside other forces."""

import copy
import sys
from types import SimpleNamespace

import openmm
import pytest
from mixed_systems import mix
from mm_systems import SOLUTE, cluster, energy_and_forces, mm_system, selected
from transports import EXACT, TRANSPORTS

from torchmdx import Ensemble, save
from torchmdx.openmm import add_potential, find, transport_torch


@pytest.mark.nightly_for("lam")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("interpolate", [None, "lam"])
def test_a_mixed_system_has_a_handle(make_potential, transport, interpolate):
    topology, positions = cluster(1)
    ensemble = Ensemble([make_potential(seed=seed) for seed in (1, 2)])
    mixed = mix(
        mm_system(topology), topology, SOLUTE, ensemble, transport=transport, interpolate=interpolate, name="ml"
    )
    (found,) = find(mixed)
    assert (found.transport, found.why, found.atoms, found.checkpoint) == (transport, "requested", SOLUTE, None)
    assert (found.force.getName(), found.num_recoveries, found.is_ensemble) == ("ml", 0, True)
    assert found.report() is None
    assert found.spread is None
    energy_and_forces(mixed, positions)
    assert found.report() is not None
    assert found.spread.energy > 0
    (again,) = find(copy.deepcopy(mixed))
    assert again.spread.energy == found.spread.energy


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_after_xml(potential, tmp_path, transport):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    topology, positions = selected(SOLUTE)
    system = mm_system(topology)
    mixed = mix(system, topology, SOLUTE, path, transport=transport, scale_parameter="s", force_group=7)
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(mixed))
    (found,) = find(again)
    assert (found.transport, found.checkpoint, found.force.getForceGroup()) == (transport, str(path), 7)
    energy_and_forces(again, positions)
    assert found.report() is not None
    assert find(system) == []


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_file_from_another_process_is_restored(potential, tmp_path, transport):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    topology, _ = selected(SOLUTE)
    mixed = mix(mm_system(topology), topology, SOLUTE, path, transport=transport)
    name = find(mixed)[0].evaluator.name
    text = openmm.XmlSerializer.serialize(mixed).replace(name, "0" * 32)
    if transport == "python":
        text = text.replace(name.encode().hex(), b"0".hex() * 32)
    (found,) = find(openmm.XmlSerializer.deserialize(text))
    assert found.evaluator is not find(mixed)[0].evaluator
    assert (found.why, found.evaluator.name) == ("restored with its System", "0" * 32)
    path.unlink()
    with pytest.raises((FileNotFoundError, openmm.OpenMMException), match="no checkpoint at"):
        find(openmm.XmlSerializer.deserialize(text.replace("0" * 32, "1" * 32).replace("30" * 32, "31" * 32)))


def test_several_in_the_order_of_the_forces(make_potential):
    topology, _ = cluster(2)
    mixed = mix(mm_system(topology), topology, (22, 23, 24), make_potential(seed=1), name="water", interpolate="lam")
    mixed = mix(mixed, topology, SOLUTE, make_potential(seed=2), name="solute")
    assert [(found.force.getName(), len(found.atoms)) for found in find(mixed)] == [("water", 3), ("solute", 22)]


def test_inside_a_bias_of_the_user(potential):
    topology, positions = selected(SOLUTE)
    system = particles()
    add_potential(system, topology, potential, range(6), transport="python", **EXACT)
    outer = openmm.CustomCVForce("2*inner")
    outer.addCollectiveVariable("inner", copy.deepcopy(system.getForce(system.getNumForces() - 1)))
    system.removeForce(system.getNumForces() - 1)
    system.addForce(outer)
    (found,) = find(system)
    assert isinstance(found.force, openmm.PythonForce)
    energy_and_forces(system, positions)
    assert found.report() is not None


def test_in_systems_of_openmmml(potential, tmp_path):
    MLPotential = pytest.importorskip("openmmml").MLPotential
    save(potential, tmp_path / "model.safetensors")
    learned = MLPotential("torchmdx", modelPath=str(tmp_path / "model.safetensors"))
    topology, _ = cluster(1)
    options = dict(transport="python", **EXACT)
    for interpolate in (False, True):
        mixed = learned.createMixedSystem(topology, mm_system(topology), SOLUTE, interpolate=interpolate, **options)
        assert [found.atoms for found in find(mixed)] == [SOLUTE]
    cut = learned.createMixedSystem(topology, mm_system(topology), range(6), **options)
    assert [(found.atoms, len(found.link_atoms)) for found in find(cut)] == [(tuple(range(6)), 1)]


def particles() -> openmm.System:
    system = openmm.System()
    for _ in SOLUTE:
        system.addParticle(12.0)
    return system


def _nothing(state):
    return 0.0, [[0.0, 0.0, 0.0]]


def test_forces_of_others_are_none_and_wrong_arguments_are_named():
    system = openmm.System()
    system.addParticle(1.0)
    system.addForce(openmm.PythonForce(_nothing))
    system.addForce(openmm.PythonForce(lambda state: (0.0, [[0.0, 0.0, 0.0]])))
    system.addForce(openmm.CustomCVForce("1"))
    assert find(system) == []
    with pytest.raises(TypeError, match="system must be an openmm.System, got CustomCVForce"):
        find(system.getForce(2))


def test_a_torch_force_is_found_by_the_number_in_its_module(potential, monkeypatch):
    topology, _ = selected(SOLUTE)
    evaluator = add_potential(particles(), topology, potential, transport="python", **EXACT).evaluator
    module = transport_torch.module_of(evaluator)
    assert transport_torch.served_by(SimpleNamespace(getModule=lambda: module)) is evaluator
    assert transport_torch.served_by(SimpleNamespace()) is None
    assert transport_torch.served_by(SimpleNamespace(getModule=lambda: sys)) is None
