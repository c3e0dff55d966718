"""Molecular dynamics of alanine dipeptide in OpenMM, with a potential of torchmdx as its only force.

The checkpoint has random weights: the energies mean nothing, but they are conserved.
"""

from pathlib import Path

from openmm import System, VerletIntegrator, app, unit

from torchmdx.openmm_force import add_potential

DATA = Path(__file__).parents[1] / "tests" / "data"


def main() -> None:
    pdb = app.PDBFile(str(DATA / "alanine_dipeptide.pdb"))
    system = System()
    for atom in pdb.topology.atoms():
        system.addParticle(atom.element.mass)
    force = add_potential(system, pdb.topology, DATA / "tensornet.safetensors", precision="float64")
    print(f"transport {force.transport}: {force.why}")
    simulation = app.Simulation(pdb.topology, system, VerletIntegrator(0.5 * unit.femtoseconds))
    simulation.context.setPositions(pdb.positions)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin, 1)
    for _ in range(5):
        simulation.step(20)
        state = simulation.context.getState(energy=True)
        total = state.getPotentialEnergy() + state.getKineticEnergy()
        print(
            f"step {simulation.currentStep:4}  total energy {total.value_in_unit(unit.kilojoule_per_mole):.4f} kJ/mol"
        )


if __name__ == "__main__":
    main()
