"""Makes the labelled geometries of aspirin that torchmdx and its peer are trained on.

    python benchmarks/aspirin/make_geometries.py aspirin.npz

Recipe: RDKit embeds CC(=O)Oc1ccccc1C(=O)O, GFN2-xTB (tblite, through ASE) relaxes it, then Langevin dynamics at 500 K
with the same method, 0.5 fs a step, friction 0.01/fs. After 1 ps every 50th step (25 fs) is kept with the energy and
forces that drove it: those are the labels. The file holds z [21], R [F,21,3] Å, E [F] eV, F [F,21,3] eV/Å, in the
order of time, and `recipe`, this text's numbers as JSON.

A kill loses at most the last 20 frames: run the same command again. 2,200 frames take about 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from ase import Atoms, units
from ase.md.langevin import Langevin
from ase.optimize import BFGS

SMILES = "CC(=O)Oc1ccccc1C(=O)O"
RECIPE = {
    "smiles": SMILES,
    "method": "GFN2-xTB",
    "accuracy": 0.01,  # of tblite (default 1): forces to 4e-6 eV/Å instead of 2e-4, at a quarter more time
    "temperature_K": 500.0,
    "timestep_fs": 0.5,
    "friction_per_fs": 0.01,
    "equilibration_steps": 2000,
    "steps_between_frames": 50,
    "embedding_seed": 7,
    "dynamics_seed": 2026,
}
SAVED_EVERY = 20  # frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the .npz file to write")
    parser.add_argument("--frames", type=int, default=2200, help="how many (default: 2200)")
    options = parser.parse_args()
    partial = options.output.with_suffix(".partial.npz")
    atoms, rng, frames = resume(partial) if partial.exists() else start()
    atoms.calc = calculator()
    dynamics = Langevin(
        atoms,
        RECIPE["timestep_fs"] * units.fs,
        temperature_K=RECIPE["temperature_K"],
        friction=RECIPE["friction_per_fs"] / units.fs,
        fixcm=False,
        rng=rng,
    )
    if not frames:
        dynamics.run(RECIPE["equilibration_steps"])
    began, had = time.perf_counter(), len(frames)
    while len(frames) < options.frames:
        dynamics.run(RECIPE["steps_between_frames"])
        frames.append(
            (atoms.positions.copy(), atoms.get_potential_energy(), atoms.get_forces(), atoms.get_temperature())
        )
        if len(frames) % SAVED_EVERY == 0:
            save(partial, atoms, frames, momenta=atoms.get_momenta(), rng=json.dumps(rng.bit_generator.state))
            rate = (len(frames) - had) / (time.perf_counter() - began)
            temperature = np.mean([frame[3] for frame in frames])
            left = (options.frames - len(frames)) / rate / 60
            print(f"{len(frames)} frames, {temperature:.0f} K on average, {left:.0f} min left", flush=True)
    save(options.output, atoms, frames)
    partial.unlink(missing_ok=True)


def calculator() -> Any:
    from tblite.ase import TBLite

    return TBLite(method=RECIPE["method"], accuracy=RECIPE["accuracy"], verbosity=0)


def start() -> tuple[Atoms, np.random.Generator, list]:
    """A relaxed molecule with velocities of the temperature."""
    from rdkit import Chem
    from rdkit.Chem import AllChem

    molecule = Chem.AddHs(Chem.MolFromSmiles(SMILES))
    if AllChem.EmbedMolecule(molecule, randomSeed=RECIPE["embedding_seed"]) != 0:
        raise RuntimeError("RDKit found no conformer")
    symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
    atoms = Atoms(symbols, molecule.GetConformer().GetPositions())
    atoms.calc = calculator()
    BFGS(atoms, logfile=None).run(fmax=0.01, steps=500)
    rng = np.random.default_rng(RECIPE["dynamics_seed"])
    scale = np.sqrt(units.kB * RECIPE["temperature_K"] * atoms.get_masses())
    atoms.set_momenta(scale[:, None] * rng.standard_normal((len(atoms), 3)))
    return atoms, rng, []


def resume(path: Path) -> tuple[Atoms, np.random.Generator, list]:
    """The state after the last saved frame."""
    with np.load(path, allow_pickle=False) as saved:
        if json.loads(str(saved["recipe"])) != RECIPE:
            raise ValueError(f"{path} was made with another recipe: {saved['recipe']}; delete it to start again")
        atoms = Atoms(saved["z"], saved["R"][-1], momenta=saved["momenta"])
        rng = np.random.default_rng()
        rng.bit_generator.state = json.loads(str(saved["rng"]))
        return atoms, rng, list(zip(saved["R"], saved["E"], saved["F"], saved["T"], strict=True))


def save(path: Path, atoms: Atoms, frames: list, **state: Any) -> None:
    """Writes all frames: whole, or not at all."""
    positions, energies, forces, temperatures = (np.array(column) for column in zip(*frames, strict=True))
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        arrays = {"z": atoms.numbers, "R": positions, "E": energies, "F": forces, "T": temperatures, **state}
        np.savez(file, recipe=json.dumps(RECIPE), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


if __name__ == "__main__":
    main()
