"""The folder that a page's blocks run in: files that the page takes for granted, small, with the names it uses."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import ase.build
import ase.io
import h5py
import numpy as np
from ase import Atoms
from documents.blocks import ROOT, Block

from torchmdx import Potential, TensorNetConfig, save
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.splits import split, write_split
from torchmdx.datasets.store import Store
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.zbl import ZBLConfig

REPOSITORY_FILE = re.compile(r"\b(?:tests|examples)/data/[\w.-]*\w")


def labelled(count: int = 40) -> list[Atoms]:
    """Geometries of ethanol at 500 K with energies and forces of GFN2-xTB."""
    return ase.io.read(ROOT / "examples" / "data" / "ethanol.xyz", f":{count}")


def bare(count: int = 3) -> list[Atoms]:
    """The same without labels."""
    return [Atoms(atoms.numbers, atoms.positions) for atoms in labelled(count)]


def write_frames(path: Path) -> None:
    ase.io.write(path, labelled())


def write_few_frames(path: Path) -> None:
    ase.io.write(path, labelled(8))


def write_some_bare(path: Path) -> None:
    ase.io.write(path, bare(12))


def write_bare(path: Path) -> None:
    ase.io.write(path, bare())


def write_crystal(path: Path) -> None:
    ase.io.write(path, ase.build.bulk("CO", "zincblende", a=4.2))


def write_archive(path: Path) -> None:
    """As rMD17 has it: kcal/mol and Å."""
    frames, unit = labelled(), 23.060548
    energies = np.array([atoms.get_potential_energy() for atoms in frames]) * unit
    forces = np.array([atoms.get_forces() for atoms in frames]) * unit
    coordinates = np.array([atoms.positions for atoms in frames])
    np.savez(path, nuclear_charges=frames[0].numbers, coords=coordinates, energies=energies, forces=forces)


def write_archive_in_ev(path: Path) -> None:
    frames = labelled()
    np.savez(
        path,
        z=frames[0].numbers,
        R=np.array([atoms.positions for atoms in frames]),
        E=np.array([atoms.get_potential_energy() for atoms in frames]),
        F=np.array([atoms.get_forces() for atoms in frames]),
    )


def write_spice(path: Path) -> None:
    """As SPICE has it: hartree and bohr, gradients."""
    frames, hartree, bohr = labelled(10), 27.211386245988, 0.529177210903
    with h5py.File(path, "w") as file:
        group = file.create_group("ethanol")
        group["atomic_numbers"] = frames[0].numbers
        group["conformations"] = np.array([atoms.positions for atoms in frames]) / bohr
        group["dft_total_energy"] = np.array([atoms.get_potential_energy() for atoms in frames]) / hartree
        group["dft_total_gradient"] = -np.array([atoms.get_forces() for atoms in frames]) / hartree * bohr
        group.create_dataset("smiles", data=["[C:1][C:2][O:3]"], dtype=h5py.string_dtype())


def write_store(path: Path) -> None:
    frames = path.with_name(f"{path.name}.xyz")
    write_frames(frames)
    convert([frames], path, log=lambda line: None)


def write_split_of_store(path: Path) -> None:
    store = Store.open("data.store")
    write_split(path, split(store, validation=0.1, test=0.2), store)


def copy_potential(path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "tensornet.safetensors", path)


def write_cohesive(path: Path) -> None:
    """A potential of pairs with crystals, cohesion and elasticity, in place of a universal one that is not at hand."""
    numbers = np.arange(36.0)
    priors = [D2Config(cutoff=6.0, c6=tuple(5 * numbers), radii=tuple(0.5 + numbers / 58)), ZBLConfig(cutoff=4.0)]
    potential = Potential(TensorNetConfig(num_channels=8, num_layers=1, num_radial=4, cutoff=5.0, max_z=35), priors)
    potential.scale.fill_(0)
    save(potential, path)


MAKERS: dict[str, Callable[[Path], None]] = {
    "train.xyz": write_frames,
    "test.xyz": write_frames,
    "water.xyz": write_frames,
    "frames.xyz": write_bare,
    "frames/one.xyz": write_some_bare,
    "runs/one.traj": write_bare,
    "a.xyz": write_few_frames,
    "crystal.cif": write_crystal,
    "more/one.npz": write_archive_in_ev,
    "rmd17_aspirin.npz": write_archive,
    "spice.h5": write_spice,
    "data.store": write_store,
    "run/split.json": write_split_of_store,
    "model.safetensors": copy_potential,
    "materials.safetensors": write_cohesive,
    "run/best.safetensors": copy_potential,
}


def prepare(folder: Path, blocks: list[Block], assumed: str) -> None:
    """Fills `folder`, which is the working directory, for the blocks of a page.

    assumed: names of MAKERS, apart by spaces, that the page takes for granted and does not make itself.
    """
    for block in blocks:
        for name in REPOSITORY_FILE.findall(block.text):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        if "file" in block.marks:
            (folder / block.marks["file"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.marks["file"]).write_text(block.text)
    for name in assumed.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        MAKERS[name](folder / name)


def contents(path: Path) -> str:
    """For messages: what lies in a folder."""
    return json.dumps(sorted(str(found.relative_to(path)) for found in path.rglob("*"))[:50])
