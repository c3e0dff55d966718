"""The absolute binding free energy of two molecules in water, one with an ML potential, one with a force field.

Two alanine dipeptides stand for a ligand (guest) and its protein (host). Needs openmmtools. A run that means something:
`python examples/24_absolute_binding.py --samples 500 --apart 500`, on a GPU, from an equilibrated pose.
"""

import argparse
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit
from openmmtools.alchemy import AbsoluteAlchemicalFactory, AlchemicalRegion

from torchmdx.dynamics.reweighting import errors_of_differences, free_energies
from torchmdx.openmm import BoreschRestraint, StateExchange, create_mixed_system

PDB = Path(__file__).parent / "data" / "alanine_dipeptide.pdb"
NAMES = ("lambda_restraint", "lambda_electrostatics", "lambda_sterics")
RESTRAINT = [(on, 1.0, 1.0) for on in (0.0, 0.05, 0.2, 0.5)]
DECOUPLING = [(1.0, charge, 1.0) for charge in (1.0, 0.75, 0.5, 0.25)]
DECOUPLING += [(1.0, 0.0, sterics) for sterics in (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)]
GUEST = range(22)  # the atoms of the first molecule
ANCHORS = (8, 6, 14)  # CA, N and C of a dipeptide
FIELD = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")


def solvated(number: int, edge: float) -> tuple[openmm.System, unit.Quantity]:
    """A mixed system of one or two dipeptides in a cube of water, nm, and positions at a minimum."""
    pdb = app.PDBFile(str(PDB))
    place, modeller = np.array(pdb.positions.value_in_unit(unit.nanometer)), app.Modeller(app.Topology(), [])
    across = np.linalg.svd(place - place.mean(0))[2][2]  # the direction in which the molecule is thinnest
    for k in range(number):
        modeller.add(pdb.topology, (place + 0.5 * k * across) * unit.nanometer)
    modeller.addSolvent(FIELD, boxSize=openmm.Vec3(edge, edge, edge) * unit.nanometer)
    options = dict(nonbondedMethod=app.PME, nonbondedCutoff=0.8, constraints=None)
    mm = FIELD.createSystem(modeller.topology, **options)
    mixed = create_mixed_system(mm, modeller.topology, GUEST, energy_offset="atoms", force_group=1)
    context = openmm.Context(mixed, openmm.VerletIntegrator(0.001))
    context.setPositions(modeller.positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=30)
    return mixed, context.getState(positions=True).getPositions(asNumpy=True)


def decouple(mixed: openmm.System, positions: unit.Quantity, windows: list, samples: int, apart: int) -> tuple:
    """Free energy from the first window to the last, kJ/mol, its error and the least acceptance of swaps."""
    factory = AbsoluteAlchemicalFactory(consistent_exceptions=False, alchemical_pme_treatment="exact")
    region = AlchemicalRegion(alchemical_atoms=GUEST, annihilate_electrostatics=True, annihilate_sterics=False)
    system = factory.create_alchemical_system(mixed, region)
    context = openmm.Context(system, openmm.LangevinMiddleIntegrator(300, 1.0, 0.0005))
    context.setPositions(positions)
    names = [name for name in NAMES if name in context.getParameters()]
    states = [{name: window[NAMES.index(name)] for name in names} for window in windows]
    exchange = StateExchange(context, states, temperature=300, steps=apart)
    exchange.run(samples, equilibration=max(1, samples // 50))
    energies, counts = exchange.reduced_energies, exchange.counts
    thermal = 300 * unit.MOLAR_GAS_CONSTANT_R.value_in_unit(unit.kilojoule_per_mole / unit.kelvin)
    found = free_energies(energies, counts)[-1], errors_of_differences(energies, counts)[0, -1]
    return thermal * found[0], thermal * found[1], exchange.acceptance.min()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2, help="of each window")
    parser.add_argument("--apart", type=int, default=2, help="steps of 0.5 fs between samples")
    given = parser.parse_args()
    mixed, positions = solvated(2, 2.2)
    host = [22 + index for index in ANCHORS]
    restraint = BoreschRestraint(host=host, guest=ANCHORS, positions=positions, temperature=300)
    restraint.add_to(mixed)
    bound = decouple(mixed, positions, RESTRAINT + DECOUPLING, given.samples, given.apart)
    free = decouple(*solvated(1, 1.8), DECOUPLING, given.samples, given.apart)
    for name, (value, error, acceptance) in (("bound", bound), ("free", free)):
        print(
            f"decoupling the {name} guest: {value:.1f} +- {error:.1f} kJ/mol, swaps accepted: {acceptance:.2f} or more"
        )
    print(f"restraint of the decoupled guest, from 1 mol/l: {restraint.standard_free_energy:.1f} kJ/mol")
    binding = free[0] - bound[0] + restraint.standard_free_energy
    print(f"ΔG(binding): {binding:.1f} +- {np.hypot(bound[1], free[1]):.1f} kJ/mol")


if __name__ == "__main__":
    main()
