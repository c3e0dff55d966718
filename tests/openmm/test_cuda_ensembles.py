"""Ensembles on OpenMM's CUDA platform: `pytest -m gpu`."""

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from ase.build import molecule  # noqa: E402
from boxes import empty_system, topology_of  # noqa: E402

from torchmdx.openmm import add_potential  # noqa: E402
from torchmdx.structures.units import BOLTZMANN, KJ_PER_MOL, NANOMETER  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("transport", ["native", "python"])
def test_the_temperature_of_langevin_dynamics_is_the_asked_one(make_potential, transport):
    if "CUDA" not in [openmm.Platform.getPlatform(i).getName() for i in range(openmm.Platform.getNumPlatforms())]:
        pytest.skip("needs OpenMM's CUDA platform")
    atoms = molecule("C60")
    atoms.positions *= 1.1
    potential = make_potential(num_channels=16, num_layers=2, cutoff=4.0)
    potential.scale.mul_(0.01)  # of random weights: forces that 0.5 fs can follow
    system = empty_system(atoms)
    add_potential(system, topology_of(atoms), potential, device="cuda", transport=transport)
    # Held loosely in place: no atom leaves for where nothing is.
    tether = openmm.CustomExternalForce("50*((x-x0)^2+(y-y0)^2+(z-z0)^2)")
    for name in ("x0", "y0", "z0"):
        tether.addPerParticleParameter(name)
    for i, position in enumerate(atoms.positions / NANOMETER):
        tether.addParticle(i, position)
    system.addForce(tether)
    integrator = openmm.LangevinMiddleIntegrator(300.0, 20.0, 0.0005)
    integrator.setRandomNumberSeed(7)
    platform = openmm.Platform.getPlatformByName("CUDA")
    context = openmm.Context(system, integrator, platform, {"Precision": "mixed"})
    context.setPositions(atoms.positions / NANOMETER)
    context.setVelocitiesToTemperature(300.0, 3)
    integrator.step(2000)
    kinetic = []
    for _ in range(600):  # 15 ps: velocities forget themselves in 0.05 ps, so the mean of 180 of them is within 0.6 %
        integrator.step(50)
        kinetic.append(context.getState(energy=True).getKineticEnergy()._value * KJ_PER_MOL)
    assert 2 * np.mean(kinetic) / (3 * len(atoms) * BOLTZMANN) == pytest.approx(300.0, rel=0.02)
