"""What a force meets in a run: threads, constraints, skins, virtual sites, errors in the middle, other processes."""

import copy
import json
import pickle
import re
import subprocess
import threading
from dataclasses import replace

import forked_programs
import numpy as np
import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from ase import Atoms  # noqa: E402
from boxes import assert_same, box_of, context_of, empty_system, expected, found, topology_of  # noqa: E402
from transports import EXACT, TRANSPORTS  # noqa: E402

from torchmdx import save  # noqa: E402
from torchmdx.openmm import (  # noqa: E402
    add_potential,
    transport_python,
)
from torchmdx.openmm.settings import ForceSettings  # noqa: E402
from torchmdx.openmm.transport_python import Computation, positions_of  # noqa: E402
from torchmdx.step.captured_step import REFRESH_EVERY  # noqa: E402
from torchmdx.structures.units import NANOMETER  # noqa: E402


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=8, num_layers=1, cutoff=3.0)


def system_of(potential, structure, **options):
    system = empty_system(structure)
    return system, add_potential(system, topology_of(structure), potential, **{**EXACT, **options})


def test_positions_come_by_the_short_way_and_by_openmms_own(potential, ethanol):
    context = context_of(system_of(potential, ethanol)[0], ethanol)
    state = context.getState(positions=True)

    class Plain:  # of an OpenMM that has no short way
        getPositions = state.getPositions

    for given in (state, Plain):
        found = positions_of(given)
        assert found.dtype == np.float64
        np.testing.assert_allclose(NANOMETER * found, ethanol.positions, atol=1e-6)


@pytest.mark.parametrize(
    ("most", "system_periodic", "periodic", "named"),
    [
        (9, False, False, True),
        (8, False, False, False),  # the way of larger systems
        (9, True, True, True),  # images make no difference to it
        (9, True, False, False),  # OpenMM would give molecules moved by box vectors
    ],
)
def test_all_particles_of_a_small_system_are_named(
    potential, ethanol, monkeypatch, most, system_periodic, periodic, named
):
    monkeypatch.setattr(transport_python, "MOST_INDEXED", most)
    assert len(ethanol) == 9
    system = empty_system(ethanol)
    if system_periodic:
        ethanol.set_cell(12 * np.eye(3))
        ethanol.pbc = True
        spring = openmm.HarmonicBondForce()  # of no bonds
        spring.setUsesPeriodicBoundaryConditions(True)
        system.addForce(spring)
        system.setDefaultPeriodicBoxVectors(*box_of(ethanol))
    add_potential(system, topology_of(ethanol), potential, transport="python", periodic=periodic, **EXACT)
    (force,) = [f for f in system.getForces() if isinstance(f, openmm.PythonForce)]
    assert list(force.getParticles()) == (list(range(9)) if named else [])
    alone = ethanol.copy()
    alone.pbc = periodic
    assert_same(found(context_of(system, ethanol)), expected(potential, alone))


def moved_on(context, structure):
    """The structure at the positions of the context."""
    after = structure.copy()
    after.positions = context.getState(positions=True).getPositions(asNumpy=True)._value * NANOMETER
    return after


@pytest.mark.nightly
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_contexts_in_threads_do_not_see_each_others_forces(potential, transport):
    grid = np.stack(np.meshgrid(*[np.arange(6.0)] * 3), -1).reshape(-1, 3)
    atoms = Atoms("H216", 2.0 * grid)
    system, _ = system_of(potential, atoms, transport=transport)
    structures = [atoms.copy(), atoms.copy()]
    for seed, structure in enumerate(structures):
        structure.rattle(0.1, seed=seed + 1)
    contexts = [context_of(system, structure) for structure in structures]
    wanted = [found(context) for context in contexts]
    errors = [0.0, 0.0]

    def run(index):
        for _ in range(60):
            contexts[index].setPositions(structures[index].positions / NANOMETER)  # to be evaluated again
            energy, forces = found(contexts[index])
            wrong = max(abs(energy - wanted[index][0]), np.abs(forces - wanted[index][1]).max())
            errors[index] = max(errors[index], wrong)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(errors) < 1e-9


@pytest.mark.filterwarnings("ignore:the region of the potential is within its cutoff")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("periodic", [True, False])
def test_a_subset_of_a_box(potential, crystal, tmp_path, transport, periodic):
    crystal.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)
    chosen, path = [2, 0], tmp_path / "model.safetensors"
    save(potential, path)
    system = empty_system(crystal)
    add_potential(system, topology_of(crystal), path, chosen, transport=transport, periodic=periodic, **EXACT)
    part = crystal[chosen]
    part.pbc = periodic
    for again in (system, copy.deepcopy(system)):
        energy, forces = found(context_of(again, crystal))
        assert_same((energy, forces[chosen]), expected(potential, part))
        assert not forces[1].any()


def test_results_are_not_overwritten_by_later_calls(potential, ethanol):
    _, force = system_of(potential, ethanol, transport="python")
    _, first = force.evaluator.evaluate(ethanol.positions, None)
    kept = first.copy()
    ethanol.rattle(0.1, seed=7)
    _, second = force.evaluator.evaluate(ethanol.positions, None)
    np.testing.assert_array_equal(first, kept)
    assert np.abs(second - first).max() > 1e-3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_constraints_and_a_skin_in_a_run(potential, ethanol, transport):
    system, force = system_of(potential, ethanol, transport=transport, skin=0.5)
    lengths = {(0, 3): 0.1, (1, 5): 0.11}
    for (one, other), length in lengths.items():
        system.addConstraint(one, other, length)
    context = context_of(system, ethanol)
    context.applyConstraints(1e-8)
    context.setVelocitiesToTemperature(200, 1)
    context.getIntegrator().step(100)
    after = moved_on(context, ethanol)
    assert np.abs(after.positions - ethanol.positions).max() > 0.05
    for (one, other), length in lengths.items():
        assert after.get_distance(one, other) == pytest.approx(length * NANOMETER, abs=1e-4)
    assert_same(found(context), expected(potential, after))
    assert force.num_recoveries == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_force_on_a_virtual_site_goes_to_its_atoms(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    system.setParticleMass(8, 0)
    system.setVirtualSite(8, openmm.TwoParticleAverageSite(2, 3, 1.4, -0.4))
    context = context_of(system, ethanol)
    context.computeVirtualSites()
    after = moved_on(context, ethanol)
    np.testing.assert_allclose(after.positions[8], 1.4 * after.positions[2] - 0.4 * after.positions[3], atol=1e-9)
    energy, wanted = expected(potential, after)
    wanted[2] += 1.4 * wanted[8]
    wanted[3] -= 0.4 * wanted[8]
    got = found(context)
    assert_same((got[0], got[1][:8]), (energy, wanted[:8]))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_audits_go_on_in_a_run(potential, ethanol, transport):
    system, force = system_of(potential, ethanol, transport=transport, precision="float32", audit_every=2)
    context = context_of(system, ethanol)
    context.getIntegrator().step(5)
    assert_same(found(context), expected(potential, moved_on(context, ethanol)), 1e-5)
    assert force.report().error < 1e-5


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_error_in_the_middle_of_a_run_keeps_its_words(potential, ethanol, transport):
    system, force = system_of(potential, ethanol, transport=transport)
    context = context_of(system, ethanol)
    context.getIntegrator().step(3)
    velocities = np.zeros((9, 3))
    velocities[6, 2] = np.nan
    context.setVelocities(velocities)
    with pytest.raises(openmm.OpenMMException) as info:
        context.getIntegrator().step(10)
    evaluator = force.evaluator
    bad = ethanol.positions.copy()
    bad[6, 2] = np.nan
    with pytest.raises(Exception, match="atom") as direct:
        evaluator.evaluate(bad, None)
    # The same sentence, but for the number of the evaluation.
    assert "atom 6" in str(info.value)
    assert str(direct.value).split("atom")[1] in str(info.value)


PROCESS = """
import openmm
from conftest import random_potential
from ase.build import molecule
from boxes import context_of, empty_system, found, topology_of
from torchmdx.openmm import add_potential
atoms = molecule("CH3CH2OH")
system = empty_system(atoms)
potential = random_potential(num_channels=8, num_layers=1, cutoff=3.0, seed=SEED)
force = add_potential(system, topology_of(atoms), potential, transport=TRANSPORT, device="cpu")
if SEED == 1:
    print(openmm.XmlSerializer.serialize(system))
else:
    try:
        print(found(context_of(openmm.XmlSerializer.deserialize(sys.stdin.read()), atoms)))
    except openmm.OpenMMException as error:
        print(error)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_potential_in_memory_is_not_mistaken_for_one_of_another_process(transport, request):
    """Same molecule, same settings, the first force of both processes; other weights."""
    tests = request.config.rootpath / "tests"
    text = ""
    for seed in (1, 2):
        head = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests / 'openmm')!r}]\n{transport = }\n{seed = }\n"
        script = head.replace("transport", "TRANSPORT").replace("seed", "SEED") + PROCESS
        command = [*forked_programs.python(), "-c", script]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        text = done.stdout
    assert "given in memory, not as a checkpoint file" in text


def test_a_force_of_a_machine_with_more_gpus_can_be_read(potential, ethanol):
    _, force = system_of(potential, ethanol, transport="python")
    values = json.loads(force.evaluator.settings.to_text())
    read = ForceSettings.from_text(json.dumps({**values, "device": "cuda:97"}))
    assert read.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert ForceSettings.from_text(json.dumps(values)) == force.evaluator.settings


def test_an_unreadable_reference_raises_when_it_is_called(potential, ethanol):
    _, force = system_of(potential, ethanol, transport="python")
    make, _ = Computation(force.evaluator, selects=False).__reduce__()
    lost = make("{}", False)
    assert pickle.loads(pickle.dumps(lost)).reason == lost.reason
    with pytest.raises(ValueError, match="settings"):
        lost(None)


def test_what_is_no_potential_or_no_name_is_refused(potential, ethanol):
    system, topology = empty_system(ethanol), topology_of(ethanol)
    with pytest.raises(TypeError, match="potential must be a Potential or a path, got Linear"):
        add_potential(system, topology, torch.nn.Linear(1, 1), **EXACT)
    with pytest.raises(ValueError, match="scale_parameter must be a name, or None for none, got ''"):
        add_potential(system, topology, potential, scale_parameter="", **EXACT)
    assert system.getNumForces() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nan_where_images_are_chosen_anew_spoils_that_evaluation_alone(potential, ethanol, transport):
    """Every so many evaluations a step takes new images and origins from the positions in hand."""
    system, force = system_of(potential, ethanol, transport=transport)
    context = context_of(system, ethanol)
    wanted = found(context)
    bad = ethanol.positions / NANOMETER
    bad[4, 1] = np.nan
    force.evaluator._step.num_evaluations = REFRESH_EVERY - 1
    context.setPositions(bad)
    with pytest.raises(openmm.OpenMMException, match=f"evaluation {REFRESH_EVERY}: .* the first is atom 4"):
        context.getState(energy=True, forces=True)
    context.setPositions(ethanol.positions / NANOMETER)
    for _ in range(2):
        assert_same(found(context), wanted)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_audit_stops_a_run_that_is_wrong(potential, ethanol, transport):
    system, force = system_of(potential, ethanol, transport=transport, audit_every=3)
    context = context_of(system, ethanol)
    wanted = found(context)
    found(context), found(context)
    step = force.evaluator._step
    run = step.engine.run
    step.engine.run = lambda *given, **options: replace((right := run(*given, **options)), forces=1.01 * right.forces)
    found(context), found(context)
    with pytest.raises(openmm.OpenMMException, match="the audit of evaluation 6: its forces differ from the exact"):
        context.getState(energy=True, forces=True)
    step.engine.run = run
    assert_same(found(context), wanted)


@pytest.mark.parametrize("version", ["8.3.1", "8.5", "8.5.2"])
def test_an_older_openmm_is_named(potential, ethanol, monkeypatch, version):
    monkeypatch.setattr(openmm.version, "short_version", version)
    with pytest.raises(ImportError, match=re.escape(f"needs OpenMM 8.6 or newer, got {version}")):
        add_potential(empty_system(ethanol), topology_of(ethanol), potential, transport="python", **EXACT)
