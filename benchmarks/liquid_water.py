"""Writes structures/liquid_water.pdb, a start for dynamics: 216 molecules of SPC/E water at 300 K and 0.997 g/cm³.

    python -m benchmarks.liquid_water [--picoseconds 20]

A box of equilibrated water of OpenMM is brought to the density at constant pressure and by a scaling of the centres of
its molecules, and then simulated at constant volume, twice --picoseconds in all. A minute on a CPU.
"""

from __future__ import annotations

import argparse

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import app, unit

from benchmarks.systems import STRUCTURES

MOLECULES, TEMPERATURE, TIMESTEP = 216, 300.0, 0.002  # K, ps
# nm³ of a molecule at 0.997 g/cm³ (18.0153 g/mol).
VOLUME = 18.0153 / 0.997 / 602.214076
FILE = STRUCTURES / "liquid_water.pdb"


def made() -> tuple[app.Modeller, openmm.System]:
    field = app.ForceField("amber14/spce.xml")
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(field, model="spce", numAdded=MOLECULES)
    length = float(modeller.topology.getUnitCellDimensions()[0].value_in_unit(unit.nanometer))
    options = dict(nonbondedMethod=app.PME, nonbondedCutoff=min(0.85, 0.45 * length), constraints=app.HBonds)
    return modeller, field.createSystem(modeller.topology, rigidWater=True, **options)


def scaled(positions: NDArray[np.float64], length: float, new: float) -> NDArray[np.float64]:
    """Molecules moved to a cube of another length; none is deformed."""
    molecules = positions.reshape(-1, 3, 3)
    centres = molecules.mean(1, keepdims=True)
    return (molecules + centres * (new / length - 1)).reshape(-1, 3)


def simulated(
    system: openmm.System, positions: NDArray[np.float64], length: float, steps: int
) -> tuple[NDArray[np.float64], float]:
    """Positions and length of the box after these steps."""
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 2.0, TIMESTEP)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("CPU"))
    context.setPeriodicBoxVectors(*(length * np.eye(3)))
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, 10.0, 100)
    context.setVelocitiesToTemperature(TEMPERATURE, 1)
    integrator.step(steps)
    state = context.getState(positions=True, enforcePeriodicBox=True)
    box = state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.nanometer)
    return state.getPositions(asNumpy=True).value_in_unit(unit.nanometer), float(box[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picoseconds", type=float, default=20.0, help="of each of two stages")
    steps = round(parser.parse_args().picoseconds / TIMESTEP)
    modeller, system = made()
    positions = np.array(modeller.positions.value_in_unit(unit.nanometer))
    length = float(modeller.topology.getUnitCellDimensions()[0].value_in_unit(unit.nanometer))
    pressing = openmm.MonteCarloBarostat(1.0, TEMPERATURE)
    index = system.addForce(pressing)
    positions, found = simulated(system, positions, length, steps)
    system.removeForce(index)
    length = (MOLECULES * VOLUME) ** (1 / 3)
    positions, _ = simulated(system, scaled(positions, found, length), length, steps)
    modeller.topology.setPeriodicBoxVectors(length * np.eye(3) * unit.nanometer)
    with FILE.open("w", encoding="utf-8") as file:
        app.PDBFile.writeFile(modeller.topology, positions * unit.nanometer, file)
    print(f"{FILE}: {found:.4f} nm at constant pressure, {length:.4f} nm written")


if __name__ == "__main__":
    main()
