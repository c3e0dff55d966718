"""Times relaxations of many crystals, with their cells: torchmdx in batches, and one by one in ASE, in one run.

    python -m benchmarks.relax FOLDER [--peer matgl,single] [--structures 1000] [--sample 20] [--optimizers lbfgs,fire]
    python -m benchmarks.relax organic-1 --molecules --peer single [--conformers FILE]

FOLDER: of a potential that matgl saved, such as TensorNet-PES-MatPES-PBE-2025.2. Crystals of 8 to 40 atoms in ten
structure types, with random displacements and strains, to 0.02 eV/Å in float32. With --molecules: conformers of
aspirin, valine and N,N-dimethylglycine from RDKit, to 0.01 eV/Å; --conformers keeps them in a file, and reads it if it
exists, so that a machine without RDKit can run them. seconds: of `torchmdx.relax` in a new process, with
setup and captures; warm_seconds: once more; cpu_seconds: of the processor, in the second. Peers relax a sample, of
stated size, with ASE's LBFGS, and crystals with FrechetCellFilter: matgl with its own calculator, single with
torchmdx.Calculator. speedup: their time per structure over that of torchmdx, setup included. energy_difference:
largest over the sample, meV per atom. Results go to relax.json, of molecules to relax_molecules.json, and to
relax_cpu.json and relax_molecules_cpu.json without a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import torch
from ase.build import bulk
from ase.filters import FrechetCellFilter
from ase.optimize import LBFGS
from ase.spacegroup import crystal

import torchmdx
from benchmarks import matgl_steps, record

FMAX, STEPS = 0.02, 500
# In the structures that ASE knows: fcc, bcc, hcp, diamond.
ELEMENTS = ase.Atoms("AlNiCuPdAgPtAuPbIrRhLiNaKVCrFeNbMoTaWMgTiCoZnZrRuHfBeCSiGe").symbols
# Lattice constants, Å; cells of 8 atoms.
PAIRS = {
    "rocksalt": {"NaCl": 5.64, "MgO": 4.21, "LiF": 4.03, "CaO": 4.81, "KCl": 6.29, "TiN": 4.24, "NaF": 4.62},
    "zincblende": {"GaAs": 5.65, "ZnS": 5.41, "InP": 5.87, "AlP": 5.46, "SiC": 4.36, "BN": 3.62, "CdTe": 6.48},
}
OTHERS = {
    "cscl": (221, [(0, 0, 0), (0.5, 0.5, 0.5)], {"CsCl": 4.12, "NiAl": 2.88, "CuZn": 2.95}),
    "perovskite": (
        221,
        [(0.5, 0.5, 0.5), (0, 0, 0), (0.5, 0, 0)],
        {"SrTiO": 3.905, "BaTiO": 4.0, "CaTiO": 3.84, "KNbO": 4.0, "LaAlO": 3.81},
    ),
    "fluorite": (225, [(0, 0, 0), (0.25, 0.25, 0.25)], {"CaF": 5.46, "CeO": 5.41, "ZrO": 5.13}),
    "cu3au": (221, [(0, 0, 0), (0, 0.5, 0.5)], {"AuCu": 3.75, "AlNi": 3.57, "TiAl": 3.97}),
}


def prototypes() -> list[ase.Atoms]:
    """One cell of every crystal."""
    found = [bulk(symbol) for symbol in ELEMENTS]
    found += [bulk(name, kind, a=a, cubic=True) for kind, names in PAIRS.items() for name, a in names.items()]
    for group, sites, names in OTHERS.values():
        for name, a in names.items():
            symbols = ase.Atoms(name).get_chemical_symbols()
            found.append(crystal(symbols, sites, spacegroup=group, cellpar=[a] * 3 + [90] * 3))
    return found


def crystals(count: int) -> list[ase.Atoms]:
    """Supercells of 8 to 40 atoms of the prototypes in turn, strained by up to 4 % and displaced by 0.1 Å."""
    random, cells, found = np.random.default_rng(0), prototypes(), []
    while len(found) < count:
        atoms = cells[len(found) % len(cells)]
        choices = [r for r in np.ndindex(4, 4, 4) if 8 <= len(atoms) * np.prod(np.add(r, 1)) <= 40]
        atoms = atoms * tuple(int(n) + 1 for n in choices[random.integers(len(choices))])
        strain = np.eye(3) + np.diag(random.uniform(-0.03, 0.04, 3)) + random.normal(0, 0.005, (3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.rattle(0.1, seed=len(found))
        atoms.info.clear()
        found.append(atoms)
    return found


def conformers(count: int) -> list[ase.Atoms]:
    """Of three molecules of 16 to 21 atoms, in turn."""
    from rdkit import Chem
    from rdkit.Chem import AllChem

    found: list[list[ase.Atoms]] = []
    for smiles in ("CC(=O)Oc1ccccc1C(=O)O", "CC(C)C(N)C(=O)O", "C[NH+](C)CC([O-])=O"):
        molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
        AllChem.EmbedMultipleConfs(molecule, -(-count // 3), randomSeed=7)
        symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
        found.append([ase.Atoms(symbols, each.GetPositions()) for each in molecule.GetConformers()])
    return [atoms for several in zip(*found, strict=False) for atoms in several][:count]


def kept_conformers(options: argparse.Namespace) -> list[ase.Atoms]:
    file = options.conformers
    if file is not None and file.exists():
        return ase.io.read(file, f":{options.structures}")
    found = conformers(options.structures)
    if file is not None:
        ase.io.write(file, found, format="extxyz")
    return found


def in_batches(
    folder: Path | str, structures: list[ase.Atoms], device: str, optimizer: str, settings: dict[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    times = []
    for _ in range(2):
        start, before = time.perf_counter(), time.process_time()
        found = torchmdx.relax(structures, folder, steps=STEPS, device=device, optimizer=optimizer, **settings)
        times.append(time.perf_counter() - start)
    row = dict(
        by="torchmdx" if optimizer == "lbfgs" else f"torchmdx, {optimizer}",
        cpu_seconds=round(time.process_time() - before, 3),
        structures=len(structures),
        atoms=sum(map(len, structures)),
        seconds=round(times[0], 3),
        warm_seconds=round(times[1], 3),
        ms_per_structure=round(times[0] / len(structures) * 1e3, 3),
        converged=sum(one.converged for one in found),
        mean_steps=round(float(np.mean([one.num_steps for one in found])), 1),
        memory_GB=round(torch.cuda.max_memory_allocated() / 2**30, 3) if device == "cuda" else None,
    )
    return row, found


def matgl_calculator(folder: Path, device: str) -> Any:
    from matgl.ext.ase import PESCalculator

    return PESCalculator(potential=matgl_steps.matgl_potential(folder, device), stress_unit="eV/A3")


def single_calculator(folder: Path, device: str) -> Any:
    return torchmdx.Calculator(folder, device=device)


PEERS: dict[str, Callable[[Path, str], Any]] = {"matgl": matgl_calculator, "single": single_calculator}


def one_by_one(
    calculator: Any, sample: list[ase.Atoms], found: list[Any], *, fmax: float, cell: bool = False
) -> dict[str, Any]:
    """Relaxes the sample in ASE. found: the same of `torchmdx.relax`."""
    warm = sample[0].copy()
    warm.calc = calculator
    for _ in range(3):  # compiles and captures: not counted
        warm.rattle(0.001)
        warm.get_forces(), cell and warm.get_stress()
    steps, converged, differences = [], 0, []
    start, before = time.perf_counter(), time.process_time()
    for atoms, ours in zip(sample, found, strict=True):
        alone = atoms.copy()
        alone.calc = calculator
        optimizer = LBFGS(FrechetCellFilter(alone) if cell else alone, logfile=None)
        done = bool(optimizer.run(fmax=fmax, steps=STEPS))
        steps.append(optimizer.nsteps)
        converged += done
        if done and ours.converged:
            difference = alone.get_potential_energy() - ours.atoms.get_potential_energy()
            differences.append(1000 * abs(float(difference)) / len(alone))
    seconds = time.perf_counter() - start
    return dict(
        structures=len(sample),
        atoms=sum(map(len, sample)),
        seconds=round(seconds, 3),
        cpu_seconds=round(time.process_time() - before, 3),
        ms_per_structure=round(seconds / len(sample) * 1e3, 3),
        converged=converged,
        mean_steps=round(float(np.mean(steps)), 1),
        energy_difference=round(max(differences, default=float("nan")), 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--molecules", action="store_true")
    parser.add_argument("--conformers", type=Path)
    parser.add_argument("--optimizers", default="lbfgs,fire")
    parser.add_argument("--peer", default="", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--structures", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    structures = kept_conformers(options) if options.molecules else crystals(options.structures)
    settings: dict[str, Any] = dict(fmax=0.01) if options.molecules else dict(fmax=FMAX, cell=True)
    rows: list[dict[str, Any]] = []
    results = []
    for optimizer in options.optimizers.split(","):
        row, found = in_batches(options.folder, structures, options.device, optimizer, settings)
        print(row, flush=True)
        rows.append(row)
        results.append(found)
    row, found = rows[0], results[0]
    chosen = np.linspace(0, len(structures) - 1, options.sample).astype(int)
    for name in filter(None, options.peer.split(",")):
        calculator = PEERS[name](options.folder, options.device)
        peer = one_by_one(calculator, [structures[k] for k in chosen], [found[k] for k in chosen], **settings)
        peer["speedup"] = round(peer["ms_per_structure"] / row["ms_per_structure"], 1)
        rows.append({"by": f"{name}, one by one"} | peer)
        print(rows[-1], flush=True)
    name = "relax_molecules" if options.molecules else "relax"
    print(record.write(name if options.device == "cuda" else f"{name}_cpu", rows))


if __name__ == "__main__":
    main()
