"""Molecular dynamics in OpenMM with a potential of torchmdx as the only force: a dipeptide in vacuum at 300 K."""

import sys
from pathlib import Path

import openmm
from openmm import app, unit

from torchmdx.openmm import add_potential

HERE, OUT = Path(__file__).parent, Path("out")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    pdb = app.PDBFile(str(HERE / "data" / "alanine_dipeptide.pdb"))
    system = openmm.System()
    for atom in pdb.topology.atoms():
        system.addParticle(atom.element.mass)
    force = add_potential(system, pdb.topology)
    print(f"{system.getNumParticles()} atoms; transport {force.transport}: {force.why}")

    integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 1 / unit.picosecond, 0.5 * unit.femtosecond)
    integrator.setRandomNumberSeed(1)
    simulation = app.Simulation(pdb.topology, system, integrator)
    simulation.context.setPositions(pdb.positions)
    simulation.minimizeEnergy(maxIterations=50)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin, 1)
    simulation.reporters.append(app.DCDReporter(str(OUT / "03_openmm.dcd"), 100))
    columns = dict(time=True, temperature=True, potentialEnergy=True, totalEnergy=True)
    simulation.reporters.append(app.StateDataReporter(sys.stdout, 100, separator="\t", **columns))
    simulation.step(500)
    print(f"trajectory: {OUT / '03_openmm.dcd'}")


if __name__ == "__main__":
    main()
