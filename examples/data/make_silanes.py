"""Makes silanes.xyz, organic.xyz and organic_replay.xyz: dynamics at 500 K, labelled with GFN2-xTB.

    python examples/data/make_silanes.py FOLDER

The files lie here already; this is their recipe. It takes ten minutes and needs `pip install 'torchmdx[label]'`. The
frames to replay have no labels.
"""

import sys
from pathlib import Path

import ase.io
from ase import Atoms

from torchmdx.commands import main as torchmdx_command

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
SILANES = ["C[Si](C)(C)C", "C[Si](C)(C)O", "C[SiH2]C", "CO[Si](C)(C)C", "C=C[SiH3]"]
ORGANIC = ["CC(N)=O", "Cc1ccccc1", "CSC", "ClCC=C", "OCC(F)F", "CC#N", "CNC=O", "C1CCOC1"]
REPLAYED = "CCO CC(C)=O c1ccncc1 CCN CC(=O)O Oc1ccccc1 CS ClCCl FC(F)F C1CCC1 NC(N)=O CC=CC C#CC OCCO c1ccsc1 CN(C)C"


def sampled(smiles: str, count: int) -> list[Atoms]:
    file = FOLDER / "sampled.xyz"
    options = f"--calculator gfn2-xtb --sample md --conformers 1 --count {count} --temperature 500 --overwrite"
    if status := torchmdx_command(["label", "--smiles", smiles, "-o", str(file), *options.split()]):
        sys.exit(status)
    return ase.io.read(file, ":")


def write(name: str, frames: list[Atoms], labels: bool = True) -> None:
    columns = "species:S:1:pos:R:3" + ":forces:R:3" * labels
    with (FOLDER / name).open("w") as file:
        for atoms in frames:
            energy = f" energy={atoms.get_potential_energy():.6f}" if labels else ""
            file.write(f'{len(atoms)}\nProperties={columns}{energy} origin="{atoms.info["origin"]}" pbc="F F F"\n')
            for symbol, place, force in zip(atoms.symbols, atoms.positions, atoms.get_forces(), strict=True):
                numbers = [*place, *force] if labels else place
                file.write(f"{symbol} {' '.join(f'{number:.5f}' for number in numbers)}\n")


if __name__ == "__main__":  # worker processes import this file
    silanes = [sampled(smiles, 40) for smiles in SILANES]
    write("silanes.xyz", [a for frames in silanes for a in frames[:13] + frames[20::2]])
    write("organic.xyz", [a for smiles in ORGANIC for a in sampled(smiles, 10)])
    write("organic_replay.xyz", [a for smiles in REPLAYED.split() for a in sampled(smiles, 10)], labels=False)
    (FOLDER / "sampled.xyz").unlink()
