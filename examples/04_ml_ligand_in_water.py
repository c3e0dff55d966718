"""A molecule with an ML potential in a box of MM water: OpenMM, amber14, TIP3P and PME.

The potential replaces the force field within the molecule; the water interacts with it through MM terms.
"""

import sys
from pathlib import Path

import openmm
from openmm import app, unit

from torchmdx.openmm import create_mixed_system

PDB = Path(__file__).parent / "data" / "alanine_dipeptide.pdb"


def energy(system: openmm.System, modeller: app.Modeller) -> float:
    """Potential energy in kJ/mol."""
    context = openmm.Context(system, openmm.VerletIntegrator(0.001))
    context.setPositions(modeller.positions)
    return context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)


def main() -> None:
    pdb = app.PDBFile(str(PDB))
    force_field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(force_field, model="tip3p", boxSize=openmm.Vec3(2.0, 2.0, 2.0) * unit.nanometer)
    ligand = [atom.index for atom in modeller.topology.atoms() if atom.residue.name != "HOH"]
    options = dict(nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer, constraints=app.HBonds)
    mm = force_field.createSystem(modeller.topology, **options)
    mixed = create_mixed_system(mm, modeller.topology, ligand)
    print(f"{len(ligand)} of {mm.getNumParticles()} atoms with the ML potential, box of 2.0 nm")
    print(f"energy: all MM {energy(mm, modeller):.1f} kJ/mol, mixed {energy(mixed, modeller):.1f} kJ/mol")
    print("(the difference is mostly the energy zero of the ligand, which differs between MM and the potential)")

    integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 2 / unit.picosecond, 0.5 * unit.femtosecond)
    simulation = app.Simulation(modeller.topology, mixed, integrator)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=20)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin, 1)
    columns = dict(time=True, temperature=True, potentialEnergy=True, density=True)
    simulation.reporters.append(app.StateDataReporter(sys.stdout, 50, separator="\t", **columns))
    simulation.step(200)


if __name__ == "__main__":
    main()
