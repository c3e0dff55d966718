"""A barostat takes the box where the potential's own stress says."""

import numpy as np
import openmm
import pytest
from ase import Atoms
from boxes import context_of, empty_system, topology_of

from torchmdx import Calculator
from torchmdx.openmm import LinkAtom, add_potential
from torchmdx.structures.units import NANOMETER


def crystal() -> Atoms:
    rng = np.random.default_rng(5)
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3) * 2.2
    return Atoms("C9H9O9", grid + rng.normal(0, 0.1, (27, 3)), cell=np.diag([6.6, 6.8, 7.0]), pbc=True)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("anisotropic", [False, True])
def test_the_volume_goes_where_the_stress_of_the_calculator_says(make_potential, sign, anisotropic):
    atoms = crystal()
    potential = make_potential(num_channels=8, num_layers=1, cutoff=3.2)
    atoms.calc = Calculator(potential, dtype="float64", device="cpu")
    pressure = -np.trace(atoms.get_stress(voigt=False)) / 3
    # A pressure of ±0.05 eV/Å³ is far above that of an ideal gas of so few kelvin.
    potential.scale.mul_(sign * 0.05 / pressure)
    atoms.calc = Calculator(potential, dtype="float64", device="cpu")
    stress = atoms.get_stress(voigt=False)
    assert np.sign(-np.trace(stress)) == sign
    system = empty_system(atoms)
    add_potential(system, topology_of(atoms), potential, precision="float64", device="cpu")
    barostat = (
        openmm.MonteCarloAnisotropicBarostat(openmm.Vec3(0, 0, 0), 1.0, False, False, True, 1)
        if anisotropic
        else openmm.MonteCarloBarostat(0.0, 1.0, 1)
    )
    barostat.setRandomNumberSeed(11)
    system.addForce(barostat)
    context = context_of(system, atoms)
    context.getIntegrator().setStepSize(1e-9)  # ps: the barostat alone moves
    context.getIntegrator().step(12)
    cell = np.array(context.getState().getPeriodicBoxVectors(asNumpy=True)._value) * NANOMETER
    if anisotropic:
        assert np.sign(cell[2, 2] - 7.0) == np.sign(-stress[2, 2])
        assert cell[0, 0] == pytest.approx(6.6)
    else:
        assert np.sign(np.linalg.det(cell) - atoms.get_volume()) == sign


@pytest.mark.filterwarnings("ignore:the region of the potential is within its cutoff")
@pytest.mark.parametrize("links", [False, True])
def test_barostats_ask_the_native_transport_for_energies_alone(make_potential, links):
    atoms = crystal()
    potential = make_potential(num_channels=8, num_layers=1, cutoff=3.2)
    boxes = []
    for transport in ("native", "python"):
        system = empty_system(atoms)
        options = dict(atoms=range(26), link_atoms=[LinkAtom(0, 26, 0.1)]) if links else {}
        force = add_potential(
            system, topology_of(atoms), potential, precision="float64", device="cpu", transport=transport, **options
        )
        barostat = openmm.MonteCarloBarostat(2000.0, 300.0, 2)
        barostat.setRandomNumberSeed(11)
        system.addForce(barostat)
        asked, evaluate = [], force.evaluator.evaluate

        def spy(positions, cell, evaluate=evaluate, asked=asked, **options):
            asked.append(options.get("with_forces", True))
            return evaluate(positions, cell, **options)

        force.evaluator.evaluate = spy
        integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 1e-6)  # others need forces for the kinetic energy
        integrator.setRandomNumberSeed(3)
        context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
        context.setPositions(atoms.positions / NANOMETER)
        integrator.step(8)
        boxes.append(np.array(context.getState().getPeriodicBoxVectors(asNumpy=True)._value))
        assert asked.count(False) == (8 if transport == "native" else 0)
        assert asked.count(True) > 0
    np.testing.assert_allclose(boxes[0], boxes[1], rtol=1e-9)
    assert not np.allclose(boxes[0] * NANOMETER, atoms.cell.array)
