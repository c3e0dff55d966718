"""dE/dλ of scaled and interpolated potentials, against differences of energies; the energy is linear in λ."""

import openmm
import pytest
from mixed_systems import made_up, mix, system_with, with_custom_nonbonded
from mm_systems import SOLUTE, cluster, energy_and_forces, mm_system, selected
from transports import EXACT, TRANSPORTS

from torchmdx import save
from torchmdx.openmm import add_potential, find, request_derivative


def derivative(system: openmm.System, positions, name: str = "lam", value: float = 1.0, platform: str = "CPU") -> float:
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions(positions)
    context.setParameter(name, value)
    return context.getState(parameterDerivatives=True).getEnergyParameterDerivatives()[name]


def difference(system: openmm.System, positions, name: str = "lam") -> float:
    one, zero = (energy_and_forces(system, positions, **{name: value})[0] for value in (1.0, 0.0))
    return one - zero


def ask_each(system: openmm.System, name: str) -> int:
    """What a user of OpenMM does: asks all forces that can be asked. Returns their number."""
    asked = [
        force
        for force in system.getForces()
        if hasattr(force, "addEnergyParameterDerivative")
        and name in [force.getGlobalParameterName(index) for index in range(force.getNumGlobalParameters())]
    ]
    for force in asked:
        force.addEnergyParameterDerivative(name)
    return len(asked)


@pytest.mark.nightly_for("Reference")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("request_by", [request_derivative, ask_each])
@pytest.mark.parametrize("platform", ["Reference", "CPU"])
def test_derivative_of_an_interpolation_is_the_difference_of_its_ends(potential, transport, request_by, platform):
    topology, positions = cluster(1)
    mixed = mix(mm_system(topology), topology, SOLUTE, potential, interpolate="lam", transport=transport)
    expected = difference(mixed, positions)
    assert derivative(mixed, positions) == 0  # as in OpenMM, without a request
    request_by(mixed, "lam")
    for value in (0.0, 0.3, 1.0):
        assert derivative(mixed, positions, value=value, platform=platform) == pytest.approx(expected, rel=1e-6)


@pytest.mark.nightly_for("python")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_derivative_survives_xml(potential, tmp_path, transport):
    save(potential, tmp_path / "model.safetensors")
    topology, positions = selected(SOLUTE)
    options = dict(interpolate="lam", transport=transport)
    mixed = mix(mm_system(topology), topology, SOLUTE, tmp_path / "model.safetensors", **options)
    request_derivative(mixed, "lam")
    expected = difference(mixed, positions)
    text = openmm.XmlSerializer.serialize(mixed)
    assert derivative(openmm.XmlSerializer.deserialize(text), positions) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_asking_twice_does_not_count_twice(potential, transport):
    system, topology, positions = with_custom_nonbonded([])
    mixed = mix(system, topology, range(6), potential, interpolate="lam", transport=transport)
    expected = difference(mixed, positions)
    for _ in range(2):
        request_derivative(mixed, "lam")
    assert derivative(mixed, positions, platform="Reference") == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_derivative_by_a_scale_parameter_alone(potential, transport):
    topology, positions = selected(SOLUTE)
    system = openmm.System()
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    force = add_potential(system, topology, potential, transport=transport, scale_parameter="s", **EXACT)
    if transport == "native":  # it cannot be asked by OpenMM's method, so it contributes where nothing else could
        assert derivative(system, positions, "s") == pytest.approx(difference(system, positions, "s"), rel=1e-9)
    else:
        force.force.addEnergyParameterDerivative("s")
    request_derivative(system, "s")
    assert derivative(system, positions, "s", 0.2) == pytest.approx(difference(system, positions, "s"), rel=1e-9)


@pytest.mark.nightly_for("python")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_regions_with_one_parameter_and_with_two(make_potential, transport):
    topology, positions = cluster(2)
    pieces = [(SOLUTE, make_potential(seed=1)), ((22, 23, 24), make_potential(seed=2))]
    for names in (("lam", "lam"), ("lam", "mu")):
        system = mm_system(topology)
        for (region, model), name in zip(pieces, names, strict=True):
            system = mix(system, topology, region, model, interpolate=name, transport=transport)
        for name in set(names):
            request_derivative(system, name)
            assert derivative(system, positions, name) == pytest.approx(difference(system, positions, name), rel=1e-6)


@pytest.mark.nightly
def test_periodic_interpolation(potential):
    system, topology, positions = system_with("PME")
    mixed = mix(system, topology, SOLUTE, potential, interpolate="lam")
    request_derivative(mixed, "lam")
    expected = difference(mixed, positions)
    assert derivative(mixed, positions, platform="Reference") == pytest.approx(expected, rel=1e-6)


def test_forces_without_a_derivative_are_refused_by_name(potential):
    system, topology, _ = with_custom_nonbonded([])
    mixed = mix(system, topology, range(6), potential, scale_parameter="lam")
    (nonbonded,) = [force for force in mixed.getForces() if isinstance(force, openmm.NonbondedForce)]
    nonbonded.addGlobalParameter("lam", 1.0)
    with pytest.raises(
        ValueError, match="NonbondedForce depends on the parameter 'lam', of which OpenMM provides no derivative"
    ):
        request_derivative(mixed, "lam")
    assert sum(force.getNumEnergyParameterDerivatives() for force in mixed.getForces() if _can_be_asked(force)) == 0
    with pytest.raises(ValueError, match="no force of the system has the parameter 'mu'; its parameters are .'common"):
        request_derivative(mixed, "mu")


def _can_be_asked(force: openmm.Force) -> bool:
    return hasattr(force, "getNumEnergyParameterDerivatives")


def test_a_parameter_inside_a_collective_variable_is_refused(potential):
    system, _, _ = made_up()
    inner = openmm.CustomBondForce("lam*r")
    inner.addGlobalParameter("lam", 1.0)
    outer = openmm.CustomCVForce("2*inner")
    outer.addCollectiveVariable("inner", inner)
    outer.setName("bias")
    system.addForce(outer)
    with pytest.raises(ValueError, match="CustomCVForce 'bias' has the parameter 'lam' in a collective variable"):
        request_derivative(system, "lam")


def test_a_scaled_potential_may_not_be_torn_apart(potential):
    """In a CustomCVForce a potential without images would get positions that OpenMM wraps molecule by molecule."""
    topology, _ = cluster(2)
    system = openmm.System()
    for _ in range(28):
        system.addParticle(12.0)
    spring = openmm.HarmonicBondForce()
    for first, second in ((22, 23), (22, 24), (25, 26), (25, 27)):
        spring.addBond(first, second, 0.1, 1000.0)
    spring.setUsesPeriodicBoundaryConditions(True)
    system.addForce(spring)
    options = dict(periodic=False, scale_parameter="s", transport="python", **EXACT)
    with pytest.raises(ValueError, match="needs periodic=True in a periodic system, or atoms that bonds, constraints"):
        add_potential(system, topology, potential, [22, 23, 24, 25, 26, 27], **options)
    add_potential(system, topology, potential, [22, 23, 24], **options)
    assert len(find(system)) == 1
