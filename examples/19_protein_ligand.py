"""A ligand with an ML potential and a protein with a force field, in water, from a PDB file and an SDF file.

`python examples/19_protein_ligand.py protein.pdb pose.sdf --time 1000` runs 1 ns. The ligand needs no force field: the
potential has all terms inside. Its charges (Gasteiger) and Lennard-Jones terms (by element) act on protein and water.
"""

import argparse
import io
from pathlib import Path

import openmm
from openmm import app, unit
from rdkit import Chem
from rdkit.Chem import rdPartialCharges

from torchmdx.openmm import create_mixed_system

DATA, OUT = Path(__file__).parent / "data", Path("out")
# As in GAFF: sigma / nm, epsilon / kJ/mol.
RADII = {"H": (0.260, 0.063), "C": (0.340, 0.360), "N": (0.325, 0.711), "O": (0.303, 0.802), "F": (0.312, 0.255)}
RADII |= {"P": (0.374, 0.837), "S": (0.356, 1.046), "Cl": (0.347, 1.109)}


def read_ligand(path: str, force_field: app.ForceField) -> app.Modeller:
    """The first molecule of a file, whose nonbonded terms are added to the force field."""
    molecule, topology = next(iter(Chem.SDMolSupplier(path, removeHs=False))), app.Topology()
    rdPartialCharges.ComputeGasteigerCharges(molecule)
    residue, types, atoms, radii = topology.addResidue("LIG", topology.addChain("L")), "", "", ""
    for atom in molecule.GetAtoms():
        symbol, name = atom.GetSymbol(), f"{atom.GetSymbol()}{atom.GetIdx() + 1}"
        element, (sigma, epsilon) = app.Element.getBySymbol(symbol), RADII[symbol]
        topology.addAtom(name, element, residue)
        types += f'<Type name="LIG-{name}" class="LIG-{name}" element="{symbol}" mass="{element.mass._value}"/>'
        atoms += f'<Atom name="{name}" type="LIG-{name}" charge="{atom.GetDoubleProp("_GasteigerCharge")}"/>'
        radii += f'<Atom type="LIG-{name}" sigma="{sigma}" epsilon="{epsilon}"/>'
    made = list(topology.atoms())
    for bond in molecule.GetBonds():
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        topology.addBond(made[ends[0]], made[ends[1]])
        atoms += f'<Bond from="{ends[0]}" to="{ends[1]}"/>'
    force_field.loadFile(
        io.StringIO(
            f'<ForceField><AtomTypes>{types}</AtomTypes><Residues><Residue name="LIG">{atoms}</Residue></Residues>'
            '<NonbondedForce coulomb14scale="0.8333333333333334" lj14scale="0.5">'
            f'<UseAttributeFromResidue name="charge"/>{radii}</NonbondedForce></ForceField>'
        )
    )
    return app.Modeller(topology, molecule.GetConformer().GetPositions() * unit.angstrom)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("protein", nargs="?", default=str(DATA / "alanine_dipeptide.pdb"), help="PDB, with hydrogens")
    parser.add_argument("ligand", nargs="?", default=str(DATA / "phenol.sdf"), help="SDF, a pose with hydrogens")
    parser.add_argument("--time", type=float, default=0.05, help="ps")
    parser.add_argument("--frames", type=int, default=500, help="of the trajectory")
    given = parser.parse_args()
    force_field, pdb = app.ForceField("amber14-all.xml", "amber14/tip3p.xml"), app.PDBFile(given.protein)
    ligand = read_ligand(given.ligand, force_field)
    modeller = app.Modeller(ligand.topology, ligand.positions)
    modeller.add(pdb.topology, pdb.positions)
    modeller.addSolvent(force_field, padding=0.8 * unit.nanometer, ionicStrength=0.1 * unit.molar)
    options = dict(nonbondedMethod=app.PME, nonbondedCutoff=0.8 * unit.nanometer, constraints=app.HBonds)
    mm = force_field.createSystem(modeller.topology, hydrogenMass=3 * unit.amu, **options)  # for steps of 2 fs
    mm.addForce(openmm.MonteCarloBarostat(1 * unit.bar, 300 * unit.kelvin))
    mixed = create_mixed_system(mm, modeller.topology, "LIG")
    print(f"{ligand.topology.getNumAtoms()} of {mm.getNumParticles()} atoms with the ML potential")
    simulation = app.Simulation(modeller.topology, mixed, openmm.LangevinMiddleIntegrator(300, 1.0, 0.002))
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=100)
    steps = round(given.time * 500)
    OUT.mkdir(exist_ok=True)
    every = max(1, steps // given.frames)
    columns = dict(step=True, time=True, potentialEnergy=True, temperature=True, density=True, speed=True)
    solute = dict(atomSubset=[*range(len(ligand.positions) + len(pdb.positions))], enforcePeriodicBox=False)
    simulation.reporters.append(app.StateDataReporter(str(OUT / "complex.log"), every, **columns))
    simulation.reporters.append(app.DCDReporter(str(OUT / "complex.dcd"), every, **solute))
    start = app.PDBReporter(str(OUT / "complex.start.pdb"), steps, **solute)  # elements and residues, for the page
    start.report(simulation, simulation.context.getState(positions=True))
    simulation.step(steps)
    print("the page of this run: torchmdx view out/complex.dcd -o out/complex.html")


if __name__ == "__main__":
    main()
