"""ML/MM systems on OpenMM's CUDA platform with the native transport: `pytest -m gpu`."""

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from mixed_systems import mix  # noqa: E402
from mm_systems import SOLUTE, mm_system, water_box  # noqa: E402
from openmm import app  # noqa: E402

from torchmdx import save  # noqa: E402
from torchmdx.openmm_force import find, request_derivative  # noqa: E402

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
    state = context.getState(energy=True, forces=True, groups=1 << group)
    return state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)
