"""ML/MM systems on OpenMM's CUDA platform with the native transport: `pytest -m gpu`."""

import subprocess
import sys

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from mixed_systems import mix  # noqa: E402
from mm_systems import SOLUTE, cluster, mm_system, water_box  # noqa: E402
from openmm import app  # noqa: E402

from torchmdx import load, save  # noqa: E402
from torchmdx.openmm import add_difference, find, request_derivative  # noqa: E402

pytestmark = pytest.mark.gpu
ON_GPU = dict(device="cuda", transport="native", precision="float32")


@pytest.fixture(autouse=True)
def needs_cuda_platform():
    if "CUDA" not in [openmm.Platform.getPlatform(i).getName() for i in range(openmm.Platform.getNumPlatforms())]:
        pytest.skip("needs OpenMM's CUDA platform")


def context_of(system, positions, precision="mixed"):
    platform = openmm.Platform.getPlatformByName("CUDA")
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.0005)
    context = openmm.Context(system, integrator, platform, {"Precision": precision})
    context.setPositions(positions)
    return context


def solvated(**options):
    topology, positions = water_box()
    return mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75, **options), topology, positions


@pytest.mark.parametrize("transport", ["native", "python"])
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_derivative_of_an_interpolation(potential, tmp_path, precision, transport):
    save(potential, tmp_path / "model.safetensors")
    system, topology, positions = solvated()
    options = dict(interpolate="lam", **{**ON_GPU, "transport": transport})
    mixed = mix(system, topology, SOLUTE, tmp_path / "model.safetensors", **options)
    request_derivative(mixed, "lam")
    for each in (mixed, openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(mixed))):
        context = context_of(each, positions, precision)
        energies = []
        for value in (0.0, 1.0):
            context.setParameter("lam", value)
            energies.append(context.getState(energy=True).getPotentialEnergy()._value)
        for value in (0.0, 0.4, 1.0):
            context.setParameter("lam", value)
            for _ in range(3):  # launched, captured, replayed
                found = context.getState(parameterDerivatives=True).getEnergyParameterDerivatives()["lam"]
                assert found == pytest.approx(energies[1] - energies[0], rel=1e-4, abs=0.1)


READS = """
import sys
import numpy as np
import openmm
import torchmdx.openmm
system = openmm.XmlSerializer.deserialize(open(sys.argv[1]).read())
platform = openmm.Platform.getPlatformByName("CUDA")
context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
context.setPositions(np.load(sys.argv[2]))
print(context.getState(energy=True).getPotentialEnergy()._value)
"""


def test_another_process_reads_the_system_and_shares_the_cuda_context(potential, tmp_path):
    save(potential, tmp_path / "model.safetensors")
    system, topology, positions = solvated()
    mixed = mix(system, topology, SOLUTE, tmp_path / "model.safetensors", **ON_GPU)
    (tmp_path / "system.xml").write_text(openmm.XmlSerializer.serialize(mixed))
    np.save(tmp_path / "positions.npy", positions)
    files = [str(tmp_path / "system.xml"), str(tmp_path / "positions.npy")]
    done = subprocess.run([sys.executable, "-c", READS, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = context_of(mixed, positions).getState(energy=True).getPotentialEnergy()._value
    assert float(done.stdout) == pytest.approx(expected, rel=1e-4)


def test_biases_inside_the_region_are_kept(potential):
    system, topology, positions = solvated()
    bias = openmm.CustomTorsionForce("0.5*k*(theta-1)^2")
    bias.addGlobalParameter("k", 500.0)
    bias.addTorsion(4, 6, 8, 14, [])
    bias.setForceGroup(5)
    system.addForce(bias)
    context = context_of(mix(system, topology, SOLUTE, potential, replace=(), **ON_GPU), positions)
    weak = context.getState(energy=True).getPotentialEnergy()._value
    own = context.getState(energy=True, groups={5}).getPotentialEnergy()._value
    assert own > 100
    context.setParameter("k", 5000.0)
    assert context.getState(energy=True).getPotentialEnergy()._value - weak == pytest.approx(9 * own, rel=1e-3)


@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_an_offset_keeps_digits(make_potential, precision):
    """Energies and dE/dlambda of the size of a binding energy, where totals are a million times as large."""
    plain, heavy = make_potential(), make_potential()
    plain.reference_energies.zero_()
    heavy.reference_energies.fill_(-1.0e4)
    system, topology, positions = solvated()
    found = []
    for given, offset in ((plain, 0.0), (heavy, "atoms")):
        mixed = mix(system, topology, SOLUTE, given, interpolate="lam", energy_offset=offset, **ON_GPU)
        request_derivative(mixed, "lam")
        context = context_of(mixed, positions, precision)
        state = context.getState(energy=True, parameterDerivatives=True)
        found.append((state.getPotentialEnergy()._value, state.getEnergyParameterDerivatives()["lam"]))
    assert found[1] == pytest.approx(found[0], abs=1.0)


def test_the_difference_in_a_group_of_its_own(potential):
    system, topology, positions = solvated()
    split = mix(system, topology, SOLUTE, potential, difference_group=6, **ON_GPU)
    whole = mix(system, topology, SOLUTE, potential, **ON_GPU)
    ends = [energy_and_forces_of_group(context_of(each, positions, "double"), None) for each in (split, whole)]
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    assert np.abs(ends[0][1] - ends[1][1]).max() < 1e-3 * np.abs(ends[1][1]).max()
    context = context_of(split, positions, "double")
    rest = energy_and_forces_of_group(context, 0)
    force_field = energy_and_forces_of_group(context_of(system, positions, "double"), None)
    assert rest[0] == pytest.approx(force_field[0], rel=1e-6)
    platform = openmm.Platform.getPlatformByName("CUDA")
    integrator = openmm.MTSLangevinIntegrator(300, 1.0, 0.001, [(6, 1), (0, 2)])
    # A trained potential: far from the force field's geometry the difference is too stiff for the longer step.
    trained = mix(system, topology, SOLUTE, load(), difference_group=6, **ON_GPU)
    context = openmm.Context(trained, integrator, platform, {"Precision": "mixed"})
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, 10, 50)
    context.setVelocitiesToTemperature(300, 1)
    integrator.step(200)
    assert np.isfinite(context.getState(energy=True).getPotentialEnergy()._value)


def test_a_fast_potential_of_the_region_and_the_difference(potential, make_potential):
    system, topology, positions = solvated()
    fast = make_potential(num_channels=16, num_layers=0, num_radial=8, seed=3)
    split = mix(system, topology, SOLUTE, fast, **ON_GPU)
    (force,) = find(split)
    assert add_difference(split, force, potential, transport="native").transport == "native"
    whole = mix(system, topology, SOLUTE, potential, **ON_GPU)
    ends = [energy_and_forces_of_group(context_of(each, positions, "double"), None) for each in (split, whole)]
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    assert np.abs(ends[0][1] - ends[1][1]).max() < 1e-3 * np.abs(ends[1][1]).max()


def test_the_handle_of_a_mixed_system(potential):
    system, topology, positions = solvated()
    mixed = mix(system, topology, SOLUTE, potential, **ON_GPU)
    (found,) = find(mixed)
    assert (found.transport, found.atoms) == ("native", SOLUTE)
    assert found.report() is None
    context = context_of(mixed, positions)
    context.getIntegrator().step(5)
    assert found.report().mode == "graph"
    assert found.num_recoveries >= 0


def test_a_region_is_not_torn_apart_when_openmm_wraps_positions(potential):
    """In a CustomCVForce, as the Python transport uses for a scale, and natively."""
    system, topology, positions = solvated()
    moved = positions + np.array([0.9, -1.1, 17.0])
    for transport in ("native", "python"):
        options = dict(periodic=False, scale_parameter="s", force_group=9, **{**ON_GPU, "transport": transport})
        mixed = mix(system, topology, SOLUTE, potential, **options)
        expected = energy_and_forces_of_group(context_of(mixed, positions), 9)
        context = context_of(mixed, moved)
        found = energy_and_forces_of_group(context, 9)
        assert found[0] == pytest.approx(expected[0], rel=1e-5)
        context.getIntegrator().step(600)  # OpenMM reorders atoms, and wraps molecules
        state = context.getState(positions=True)
        there = np.array(state.getPositions(asNumpy=True)._value)
        reference = mix(
            system, topology, SOLUTE, potential, periodic=False, force_group=9, transport="python", device="cpu"
        )
        platform = openmm.Platform.getPlatformByName("Reference")
        other = openmm.Context(reference, openmm.VerletIntegrator(0.001), platform)
        other.setPositions(there)
        expected = energy_and_forces_of_group(other, 9)
        found = energy_and_forces_of_group(context, 9)
        assert found[0] == pytest.approx(expected[0], rel=1e-5)
        assert np.abs(found[1] - expected[1]).max() < 1e-3 * np.abs(expected[1]).max()


def energy_and_forces_of_group(context, group):
    state = context.getState(energy=True, forces=True, groups=-1 if group is None else 1 << group)
    return state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)


def on_the_reference_platform(system, positions):
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    return context


@pytest.mark.parametrize("case", ["NoCutoff native", "CutoffPeriodic native", "PME native", "PME python"])
def test_electrostatic_embedding(make_potential, case):
    """Against the CPU, also without forces, after OpenMM has reordered atoms, and in another box."""
    method, transport = case.split()
    charged = make_potential(model="tensornet2", num_channels=16, num_layers=1).float()
    charged.scale.fill_(0.01)
    topology, positions = cluster(40) if method == "NoCutoff" else water_box()
    system = mm_system(topology, nonbondedMethod=getattr(app, method), nonbondedCutoff=0.75)
    mixed, exact = (
        mix(system, topology, SOLUTE, charged, embedding="electrostatic", force_group=9, **{**ON_GPU, **options})
        for options in (dict(transport=transport), dict(transport="python", device="cpu"))
    )
    context = context_of(mixed, positions)
    for factor in (1.0, 1.005, 1.2):
        box = factor * np.array([side._value for side in mixed.getDefaultPeriodicBoxVectors()])
        context.setPeriodicBoxVectors(*box)
        context.setPositions(factor * positions)
        other = on_the_reference_platform(exact, factor * positions)
        other.setPeriodicBoxVectors(*box)
        found, wanted = (energy_and_forces_of_group(each, 9) for each in (context, other))
        assert found[0] == pytest.approx(wanted[0], rel=1e-5, abs=0.02)
        assert np.abs(found[1] - wanted[1]).max() < 1e-3 * np.abs(wanted[1]).max()
        assert np.abs(found[1][22:]).max() > 0
        alone = context.getState(energy=True, groups=1 << 9).getPotentialEnergy()._value
        assert alone == pytest.approx(found[0], rel=1e-6, abs=0.02)
    openmm.LocalEnergyMinimizer.minimize(context, 10, 20)
    context.getIntegrator().step(600)
    there = np.array(context.getState(positions=True).getPositions(asNumpy=True)._value)
    other.setPositions(there)
    found, wanted = (energy_and_forces_of_group(each, 9) for each in (context, other))
    assert found[0] == pytest.approx(wanted[0], rel=1e-5, abs=0.02)
    assert np.abs(found[1] - wanted[1]).max() < 1e-3 * np.abs(wanted[1]).max()
    assert find(mixed)[0].report().mode == "graph"


def test_a_barostat_with_electrostatic_embedding(make_potential):
    charged = make_potential(model="tensornet2", num_channels=16, num_layers=1).float()
    charged.scale.fill_(0.01)
    system, topology, positions = solvated()
    system.addForce(openmm.MonteCarloBarostat(1, 300, 2))
    context = context_of(mix(system, topology, SOLUTE, charged, embedding="electrostatic", **ON_GPU), positions)
    openmm.LocalEnergyMinimizer.minimize(context, 10, 20)
    context.getIntegrator().step(100)
    assert np.isfinite(context.getState(energy=True).getPotentialEnergy()._value)


@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("periodic", [None, False])
def test_link_atoms(precision, periodic):
    """Against the Python transport on the Reference platform, also after OpenMM has reordered and wrapped atoms."""
    system, topology, positions = solvated()
    potential = load().double()  # trained: atoms of a random one fuse within 600 steps
    region, options = tuple(range(8, 14)), dict(link_atoms=True, force_group=9, periodic=periodic)
    native = mix(system, topology, region, potential, **options, **ON_GPU)
    python = mix(system, topology, region, potential, **options)
    platform = openmm.Platform.getPlatformByName("Reference")
    reference = openmm.Context(python, openmm.VerletIntegrator(0.001), platform)
    context = context_of(native, positions + np.array([0.9, -1.1, 17.0]), precision)
    for steps in (0, 3, 600):
        context.getIntegrator().step(steps)
        there = context.getState(positions=True).getPositions(asNumpy=True)._value
        reference.setPositions(np.array(there))
        found, expected = (energy_and_forces_of_group(each, 9) for each in (context, reference))
        assert found[0] == pytest.approx(expected[0], abs=0.05)
        assert np.abs(found[1] - expected[1]).max() < 1e-3 * np.abs(expected[1]).max()
        assert np.abs(found[1][[6, 14]]).max() > 1e-2 * np.abs(expected[1]).max()


def test_link_atoms_interpolate_and_survive_xml(potential, tmp_path):
    save(potential, tmp_path / "model.safetensors")
    system, topology, positions = solvated()
    options = dict(link_atoms=True, interpolate="lam", **ON_GPU)
    mixed = mix(system, topology, range(6), tmp_path / "model.safetensors", **options)
    request_derivative(mixed, "lam")
    for each in (mixed, openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(mixed))):
        context = context_of(each, positions, "double")
        ends = []
        for value in (0.0, 1.0):
            context.setParameter("lam", value)
            ends.append(energy_and_forces_of_group(context, None))
        context.setParameter("lam", 0.4)
        energy, forces = energy_and_forces_of_group(context, None)
        assert energy == pytest.approx(0.6 * ends[0][0] + 0.4 * ends[1][0], rel=1e-6)
        between = 0.6 * ends[0][1] + 0.4 * ends[1][1]
        assert np.abs(forces - between).max() < 1e-3 * np.abs(between).max()
        found = context.getState(parameterDerivatives=True).getEnergyParameterDerivatives()["lam"]
        assert found == pytest.approx(ends[1][0] - ends[0][0], rel=1e-4, abs=0.1)
