"""A potential as a force of an OpenMM system: energies, forces, boxes, barostats, saving, errors.

The transports that run without a GPU: Python's, and the C++ plugin on the platforms of the CPU.
"""

import copy
import gc
import subprocess

import forked_programs
import numpy as np
import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, box_of, context_of, empty_system, expected, found, topology_of  # noqa: E402
from openmm import app, unit  # noqa: E402
from transports import EXACT, TRANSPORTS  # noqa: E402

from torchmdx import CapturedStep, System, save  # noqa: E402
from torchmdx.models.model_card import Card  # noqa: E402
from torchmdx.models.priors.coulomb import CoulombConfig  # noqa: E402
from torchmdx.openmm import add_potential  # noqa: E402
from torchmdx.structures.units import NANOMETER  # noqa: E402


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=8, num_layers=1, cutoff=3.0)


@pytest.fixture
def reduced(crystal):
    """The crystal in a box as OpenMM wants it: lower triangular, with small off-diagonal entries."""
    crystal.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)
    return crystal


def system_of(potential, structure, **options):
    system = empty_system(structure)
    return system, add_potential(system, topology_of(structure), potential, **{**EXACT, **options})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("platform", ["Reference", "CPU"])
@pytest.mark.parametrize("name", ["ethanol", "reduced"])
def test_energies_and_forces_are_those_of_the_calculator(potential, request, transport, platform, name):
    atoms = request.getfixturevalue(name)
    system, force = system_of(potential, atoms, transport=transport)
    assert force.transport == transport
    # The CPU platform keeps positions in double precision for other kernels than its own.
    assert_same(found(context_of(system, atoms, platform)), expected(potential, atoms))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_float32_agrees_to_its_precision(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport, precision="float32")
    assert_same(found(context_of(system, ethanol)), expected(potential, ethanol), 1e-5)


def test_auto_takes_python_where_there_is_no_gpu_and_says_why(potential, ethanol):
    _, force = system_of(potential, ethanol)
    assert force.transport == "python"
    assert "on the cpu" in force.why


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_subset_in_any_order_leaves_the_rest_alone(potential, ethanol, transport):
    chosen = [5, 0, 2, 1, 8]
    system, _ = system_of(potential, ethanol, atoms=chosen, transport=transport, charge=1.0)
    energy, forces = found(context_of(system, ethanol))
    part = ethanol[chosen]
    part.info["charge"] = 1
    wanted = expected(potential, part)
    assert_same((energy, forces[chosen]), wanted)
    assert not np.delete(forces, chosen, axis=0).any()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_changed_box_is_seen(potential, reduced, transport):
    system, _ = system_of(potential, reduced, transport=transport)
    context = context_of(system, reduced)
    before = found(context)
    reduced.set_cell(reduced.cell.array * 1.04, scale_atoms=True)
    context.setPeriodicBoxVectors(*box_of(reduced))
    context.setPositions(reduced.positions / NANOMETER)
    assert_same(found(context), expected(potential, reduced))
    assert abs(found(context)[0] - before[0]) > 1e-6


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_periodic_false_ignores_the_box(potential, reduced, transport):
    system, force = system_of(potential, reduced, periodic=False, transport=transport)
    assert not force.force.usesPeriodicBoundaryConditions()
    reduced.pbc = False
    assert_same(found(context_of(system, reduced)), expected(potential, reduced))


def test_a_box_is_doubted_after_training_on_molecules_but_not_around_a_region(make_potential, reduced):
    potential = make_potential()
    potential.card = Card(name="small-1", periodic=False)
    with pytest.warns(UserWarning, match="small-1 was trained on molecules in vacuum"):
        system_of(potential, reduced, transport="python")
    system_of(potential, reduced, atoms=[0, 1], transport="python")  # a warning would be an error
    system_of(potential, reduced, periodic=False, transport="python")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_scale_parameter_group_and_name(potential, ethanol, transport):
    options = dict(scale_parameter="lambda_ml", force_group=3, name="ml", transport=transport)
    system, force = system_of(potential, ethanol, **options)
    assert force.force.getName() == "ml"
    context = context_of(system, ethanol)
    energy, forces = expected(potential, ethanol)
    assert_same(found(context), (energy, forces))
    context.setParameter("lambda_ml", 0.25)
    assert_same(found(context), (0.25 * energy, 0.25 * forces))
    assert found(context, groups={0})[0] == 0.0
    assert_same(found(context, groups={3}), (0.25 * energy, 0.25 * forces))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_contexts_in_turns_and_deleted_in_any_order(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    moved = ethanol.copy()
    moved.rattle(0.05, seed=4)
    one, two = context_of(system, ethanol), context_of(system, moved)
    for _ in range(2):
        assert_same(found(one), expected(potential, ethanol))
        assert_same(found(two), expected(potential, moved))
    del one
    assert_same(found(two), expected(potential, moved))


def test_steps_of_contexts_that_are_gone_are_forgotten(potential, ethanol):
    _, force = system_of(potential, ethanol, transport="python")
    evaluator = force.evaluator
    steps = [CapturedStep(potential, System.from_ase(ethanol)) for _ in range(3)]
    for step in steps:
        evaluator.keep_track(step)
        step.num_recoveries = 2
    assert force.num_recoveries == 6
    del step, steps[1]
    gc.collect()
    assert (len(evaluator.sessions), force.num_recoveries) == (2, 4)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_xml_and_copies_of_a_system_with_a_checkpoint(potential, ethanol, tmp_path, transport):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    system, _ = system_of(path, ethanol, transport=transport, atoms=[0, 1, 2, 3], force_group=2, name="ml")
    text = openmm.XmlSerializer.serialize(system)
    assert len(text) < 20_000  # a reference, not the weights
    for again in (openmm.XmlSerializer.deserialize(text), copy.deepcopy(system)):
        force = again.getForce(0)
        assert (force.getForceGroup(), force.getName()) == (2, "ml")
        assert_same(found(context_of(again, ethanol)), found(context_of(system, ethanol)))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_changed_or_missing_checkpoint_is_refused(potential, make_potential, ethanol, tmp_path, transport):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    system, _ = system_of(path, ethanol, transport=transport)
    text = openmm.XmlSerializer.serialize(system)
    save(make_potential(num_channels=8, num_layers=2), path)
    # A PythonForce says so when it is first evaluated, the plugin's at once.
    with pytest.raises(
        openmm.OpenMMException, match="has changed since the force was saved: the SHA-256 of .* must be"
    ):
        context_of(openmm.XmlSerializer.deserialize(text), ethanol).getState(energy=True)
    path.unlink()
    with pytest.raises(openmm.OpenMMException, match="no checkpoint at"):
        context_of(openmm.XmlSerializer.deserialize(text), ethanol).getState(energy=True)


@pytest.mark.nightly
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_copies_of_a_potential_in_memory_work_in_this_process_only(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    assert_same(found(context_of(copy.deepcopy(system), ethanol)), expected(potential, ethanol))
    text = openmm.XmlSerializer.serialize(system)
    script = """
import sys, openmm
try:
    system = openmm.XmlSerializer.deserialize(sys.stdin.read())
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions([openmm.Vec3(i, 0, 0) for i in range(9)])
    context.getState(energy=True)
except openmm.OpenMMException as error:
    print(error)
"""
    needs = "from torchmdx.openmm import load_plugin; load_plugin(cuda=False)\n" * (transport == "native")
    command = [*forked_programs.python(), "-c", needs + script]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "given in memory, not as a checkpoint file" in done.stdout


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_simulation_minimiser_and_checkpoint(potential, ethanol, tmp_path, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    reference = openmm.Platform.getPlatformByName("Reference")
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.0005)
    integrator.setRandomNumberSeed(5)
    simulation = app.Simulation(topology_of(ethanol), system, integrator, reference)
    simulation.context.setPositions(ethanol.positions / NANOMETER)
    before = found(simulation.context)[0]
    simulation.minimizeEnergy(maxIterations=20)
    assert found(simulation.context)[0] < before - 1e-4
    simulation.context.setVelocitiesToTemperature(300, 3)
    simulation.saveCheckpoint(str(tmp_path / "c.chk"))
    ends = []
    for _ in range(2):
        simulation.loadCheckpoint(str(tmp_path / "c.chk"))
        simulation.step(10)
        ends.append(simulation.context.getState(positions=True).getPositions(asNumpy=True)._value)
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-9)


@pytest.mark.nightly_for("python")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_energy_is_conserved(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport, precision="float32")
    context = context_of(system, ethanol)
    context.setVelocitiesToTemperature(100, 1)

    def total():
        state = context.getState(energy=True)
        return (state.getPotentialEnergy() + state.getKineticEnergy())._value

    start, kinetic = total(), context.getState(energy=True).getKineticEnergy()._value
    context.getIntegrator().step(300)
    assert abs(total() - start) < 1e-3 * kinetic
    assert (
        np.abs(context.getState(positions=True).getPositions(asNumpy=True)._value * 10 - ethanol.positions).max() > 0.01
    )


@pytest.mark.nightly_for("python", "anisotropic-native")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["isotropic", "anisotropic"])
def test_barostats_move_the_box_and_the_energy_follows(potential, reduced, transport, kind):
    reduced.set_cell(np.diag([6.4, 6.3, 6.6]), scale_atoms=True)
    system, _ = system_of(potential, reduced, transport=transport)
    if kind == "isotropic":
        system.addForce(openmm.MonteCarloBarostat(2000.0, 300.0, 1))
    else:
        system.addForce(openmm.MonteCarloAnisotropicBarostat(openmm.Vec3(2000, 2000, 2000), 300.0, True, True, True, 1))
    context = context_of(system, reduced)
    context.getIntegrator().step(60)
    state = context.getState(positions=True)
    cell = np.array(state.getPeriodicBoxVectors(asNumpy=True)._value) * NANOMETER
    assert np.abs(cell - reduced.cell.array).max() > 1e-3
    reduced.set_cell(cell)
    reduced.positions = state.getPositions(asNumpy=True)._value * NANOMETER
    assert_same(found(context), expected(potential, reduced))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_overflowing_list_is_mended_before_forces_are_used(potential, transport):
    from ase import Atoms

    positions = np.array([[i, j, k] for i in range(4) for j in range(4) for k in range(4)], dtype=float)
    loose = Atoms("H64", positions * 2.9)
    system, force = system_of(potential, loose, transport=transport)
    context = context_of(system, loose)
    found(context)
    dense = Atoms("H64", positions * 1.0)
    context.setPositions(dense.positions / NANOMETER)
    assert_same(found(context), expected(potential, dense))
    assert force.num_recoveries >= 1
    assert force.report() is not None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_atom_far_away_is_an_error_at_once(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport, atoms=[5, 0, 2, 1, 8])
    context = context_of(system, ethanol)
    wanted = found(context)
    positions = ethanol.positions / NANOMETER
    context.setPositions(positions + 3e4)  # all of them: no harm
    assert found(context)[0] == pytest.approx(wanted[0], rel=1e-6)
    positions[1, 2] += 1e5
    context.setPositions(positions)
    with pytest.raises(openmm.OpenMMException, match=r"particle 1 is at \(.*, 100000\) nm: atoms .* within 10000 nm"):
        context.getState(energy=True)
    context.setPositions(ethanol.positions / NANOMETER)
    assert_same(found(context), wanted)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nan_is_named(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    context = context_of(system, ethanol)
    found(context)
    positions = ethanol.positions / NANOMETER
    positions[4, 1] = np.nan
    context.setPositions(positions)
    with pytest.raises(openmm.OpenMMException, match=r"atom(s)? 4"):
        context.getState(energy=True, forces=True)
    context.setPositions(ethanol.positions / NANOMETER)  # and the context stays usable
    assert_same(found(context), expected(potential, ethanol))


ERRORS = [
    (dict(transport="fast"), ValueError, "transport must be one of auto, native, torch, python, got 'fast'"),
    (dict(atoms=[]), ValueError, "atoms must name at least one atom, got none"),
    (dict(atoms=[0, 9]), ValueError, "atoms must be between 0 and 8, got 9"),
    (dict(atoms=[0, 3, 0]), ValueError, "atoms must not be repeated, got 0 more than once"),
    (dict(atoms=[0.5]), TypeError, "atoms must be whole numbers"),
    (dict(precision="float16"), ValueError, "precision must be one of float32, float64, got 'float16'"),
    (dict(skin=-1.0), ValueError, "skin must be >= 0 Å, got -1.0"),
    (dict(audit_every=-1), ValueError, "audit_every must be >= 0 evaluations, got -1"),
    (dict(force_group=32), ValueError, "force_group must be between 0 and 31, got 32"),
    (dict(charge=float("nan")), ValueError, "charge"),
    (dict(periodic=True), ValueError, "periodic=True needs a periodic box, but neither system nor topology has one"),
    (dict(mode="graph"), Exception, "mode 'graph' needs a CUDA GPU"),
    (dict(device="tpu"), ValueError, "device must be cpu or cuda, got 'tpu'"),
]


@pytest.mark.parametrize(("options", "error", "message"), ERRORS, ids=[str(e[0]) for e in ERRORS])
def test_bad_options_are_refused(potential, ethanol, options, error, message):
    with pytest.raises(error, match=message):
        system_of(potential, ethanol, **options)


def test_bad_topologies_and_files_are_refused(potential, make_potential, ethanol, tmp_path):
    system, topology = empty_system(ethanol), topology_of(ethanol)
    with pytest.raises(ValueError, match="system and topology must have the same atoms, got 8 and 9"):
        add_potential(empty_system(ethanol[:8]), topology, potential, **EXACT)
    nameless = app.Topology()
    residue = nameless.addResidue("LIG", nameless.addChain())
    for i in range(9):
        nameless.addAtom(f"X{i}", None, residue)
    with pytest.raises(ValueError, match=r"every atom needs an element, atom 0 \(X0 of LIG\)"):
        add_potential(system, nameless, potential, **EXACT)
    broken = tmp_path / "broken.safetensors"
    broken.write_text("not a checkpoint")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        add_potential(system, topology, broken, **EXACT)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        add_potential(system, topology, tmp_path / "none.safetensors", **EXACT)
    with pytest.raises(ValueError, match="knows atomic numbers up to 6, got 8 for atom 2"):
        add_potential(system, topology, make_potential(max_z=6), **EXACT)
    assert system.getNumForces() == 0


def test_the_callers_potential_stays_as_it_is(potential, ethanol):
    before = {name: value.clone() for name, value in potential.state_dict().items()}
    dtype = potential.dtype
    system_of(potential, ethanol, precision="float32" if dtype == torch.float64 else "float64")
    assert potential.dtype == dtype
    for name, value in potential.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_error_of_the_plugin_names_what_is_missing(monkeypatch):
    from torchmdx.openmm.native import build

    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(build.BuildError, match=r"no compiler found \(c\+\+, g\+\+ or \$CXX\)"):
        build.compiled("x", ["force.cpp"], [], [])


def test_a_topology_with_a_box_gives_an_empty_system_its_box(potential, reduced):
    system, _ = system_of(potential, reduced)
    box = np.array([[x.value_in_unit(unit.nanometer) for x in row] for row in system.getDefaultPeriodicBoxVectors()])
    np.testing.assert_allclose(box * NANOMETER, reduced.cell.array, atol=1e-9)


def test_a_potential_that_takes_charges_as_given_is_refused(make_potential, ethanol):
    given = make_potential(priors=[lambda: CoulombConfig(charges="given")])
    with pytest.raises(ValueError, match="must predict its charges or have none: OpenMM Systems have no partial char"):
        system_of(given, ethanol)
