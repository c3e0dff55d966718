"""Errors of float32 engines on released potentials, against the reference in float64.

    python -m benchmarks.accuracy [FOLDER] [--device cpu] [--only aceff-2.0/dhfr,...] [--most-atoms 1000] [--resume]

FOLDER (or $RELEASED_POTENTIALS) has the files and folders of POTENTIALS, also in folders within, as for
benchmarks.released; organic-1 comes with torchmdx. Nothing is timed. accuracy.json, on a GPU accuracy_gpu.json, is
written after each row; rows of another device or commit stay until they are measured again.

ran_on: CPU or GPU. force_error: |F - F'| / |F'| over all atoms. largest_force_error: of an atom, eV/Å. stress_error:
|σ - σ'| / |σ'|, of periodic systems. energy_error_per_atom_eV. coulomb: how Coulomb energies of a periodic system are
computed, where there are any. The error of an Ewald sum at its own accuracy is not included: the reference sums the
same terms.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.build import bulk, molecule

import torchmdx
from benchmarks import record, released_systems
from torchmdx import Batch, CapturedStep, Ensemble, Potential, System
from torchmdx.models.coulomb_cutoff import coulomb_cutoff_of, with_coulomb_cutoff

Row = dict[str, Any]
SHIFT = 0.05  # Å, standard deviation of random displacements


def crystal(symbols: str, lattice: str, constant: float, cells: int, **options: Any) -> ase.Atoms:
    atoms = bulk(symbols, lattice, constant, cubic=lattice != "hcp", **options) * (cells, cells, cells)
    atoms.rattle(SHIFT, seed=1)
    return atoms


def rutile() -> ase.Atoms:
    """TiO2."""
    u, a, c = 0.305, 4.594, 2.959
    places = [(0, 0, 0), (0.5, 0.5, 0.5), (u, u, 0), (-u, -u, 0), (0.5 + u, 0.5 - u, 0.5), (0.5 - u, 0.5 + u, 0.5)]
    atoms = ase.Atoms("Ti2O4", scaled_positions=places, cell=[a, a, c], pbc=True) * (2, 2, 3)
    atoms.rattle(SHIFT, seed=1)
    return atoms


def ion(name: str) -> tuple[ase.Atoms, float]:
    """Ions by protonation and deprotonation of ASE's molecules."""
    if name == "ammonium":
        corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 1.02 / np.sqrt(3)
        return ase.Atoms("NH4", [[0, 0, 0], *corners]), 1.0
    if name == "hydronium":
        corners = [[0.93, 0, 0.3], [-0.47, 0.81, 0.3], [-0.47, -0.81, 0.3]]
        return ase.Atoms("OH3", [[0, 0, 0], *corners]), 1.0
    atoms = molecule({"acetate": "CH3COOH", "methoxide": "CH3OH"}[name])
    acidic = [i for i in range(len(atoms)) if atoms.numbers[i] == 1 and is_bonded_to_oxygen(atoms, i)]
    del atoms[acidic[0]]
    return atoms, -1.0


def is_bonded_to_oxygen(atoms: ase.Atoms, index: int) -> bool:
    distances = np.linalg.norm(atoms.positions - atoms.positions[index], axis=1)
    return bool(((distances < 1.2) & (atoms.numbers == 8)).any())


IONS = ("ammonium", "hydronium", "acetate", "methoxide")
CRYSTALS: dict[str, tuple[str, Callable[[], ase.Atoms]]] = {
    "Cu 108": ("metal", lambda: crystal("Cu", "fcc", 3.61, 3)),
    "Fe 54": ("metal", lambda: crystal("Fe", "bcc", 2.87, 3)),
    "Al 108": ("metal", lambda: crystal("Al", "fcc", 4.05, 3)),
    "Si 64": ("semiconductor", lambda: crystal("Si", "diamond", 5.43, 2)),
    "GaAs 64": ("semiconductor", lambda: crystal("GaAs", "zincblende", 5.65, 2)),
    "MgO 64": ("oxide", lambda: crystal("MgO", "rocksalt", 4.21, 2)),
    "TiO2 72": ("oxide", rutile),
    "NaCl 64": ("salt", lambda: crystal("NaCl", "rocksalt", 5.64, 2)),
    "LiF 64": ("salt", lambda: crystal("LiF", "rocksalt", 4.03, 2)),
    "CsCl 54": ("salt", lambda: crystal("CsCl", "cesiumchloride", 4.12, 3)),
}
MOLECULES = ("toluene", "alanine_dipeptide")
ORGANIC = (*MOLECULES, "chignolin", *IONS, "dhfr", "water216")
MATERIALS = (*CRYSTALS, *MOLECULES)
POTENTIALS = {
    "organic-1": (*MOLECULES, "chignolin", "dhfr", "water216"),
    "aceff-1.1": ORGANIC,
    "aceff-2.0": ORGANIC,
    "TensorNet-MatPES-PBE-v2025.1-PES": MATERIALS,
    "TensorNet-MatPES-r2SCAN-v2025.1-PES": MATERIALS,
    "TensorNet-ANI-1x-Subset-PES": MOLECULES,
    "QET-MatQ-PES": MATERIALS,
}


def structure(name: str) -> tuple[str, ase.Atoms, float]:
    """Kind, atoms and total charge of a system.

    Structures near a minimum are displaced: their forces would vanish, and a relative error would say nothing.
    """
    if name in CRYSTALS:
        kind, make = CRYSTALS[name]
        return kind, make(), 0.0
    kind, charge = ("box" if name.startswith("water") else released_systems.kind(name)), 0.0
    if name in IONS:
        kind, (atoms, charge) = "ion", ion(name)
    else:
        atoms = released_systems.structure(name)
    if name in (*IONS, "toluene"):
        atoms.rattle(SHIFT, seed=1)
    return kind, atoms, charge


def errors(potential: Potential | Ensemble, system: System) -> Row:
    """How a step differs from the exact model."""
    from torchmdx.step.exact import exact_results

    periodic = bool(system.pbc.all())
    step = CapturedStep(potential, system, stress=periodic)
    result = step(system.positions.numpy())
    batch = Batch.of(system).to(device=potential.device)
    exact = {name: value.cpu().numpy() for name, value in exact_results(potential, batch, stress=periodic).items()}
    difference = np.asarray(result.forces, dtype=np.float64) - exact["forces"]
    row: Row = {
        "engine": step.engine.name,
        "force_error": float(np.linalg.norm(difference) / np.linalg.norm(exact["forces"])),
        "largest_force_error": float(np.linalg.norm(difference, axis=1).max()),
        "energy_error_per_atom_eV": float(abs(np.ravel(result.energy)[0] - exact["energy"][0])) / system.num_atoms,
    }
    if periodic:
        stress, wanted = np.asarray(result.stress, dtype=np.float64).reshape(3, 3), exact["stress"].reshape(3, 3)
        row["stress_error"] = float(np.linalg.norm(stress - wanted) / np.linalg.norm(wanted))
    return row


def treatments(potential: Potential | Ensemble, periodic: bool) -> list[tuple[str, Potential | Ensemble]]:
    """Labels and potentials: in periodic systems both treatments of a Coulomb energy."""
    summed = [prior.name for prior in getattr(potential, "prior_configs", ()) if prior.name == "coulomb"]
    if not (periodic and summed):
        return [("", potential)]
    field = with_coulomb_cutoff(potential, None, "reaction_field")
    cutoff = coulomb_cutoff_of(field, periodic=True)
    return [("Ewald sum", with_coulomb_cutoff(potential, None, "ewald")), (f"reaction field, {cutoff:g} Å", field)]


def rows_of(name: str, potential: Potential | Ensemble, system: str) -> list[Row]:
    kind, atoms, charge = structure(system)
    given = System.from_ase(atoms, charge)
    rows = []
    for label, treated in treatments(potential, bool(given.pbc.any())):
        started = time.perf_counter()
        row = {
            "potential": name,
            "system": system + (f", {label}" if label else ""),
            "kind": kind,
            "atoms": len(atoms),
            "charge": charge,
            "ran_on": "GPU" if potential.device.type == "cuda" else "CPU",
            **errors(treated, given),
        }
        rows.append(row)
        print(f"{row} in {time.perf_counter() - started:.1f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="POTENTIAL/SYSTEM or POTENTIAL, comma-separated")
    parser.add_argument("--most-atoms", type=int, default=100_000, help="leave out larger systems")
    parser.add_argument("--resume", action="store_true", help="skip rows of this commit and device")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name]
    target = "accuracy" if options.device == "cpu" else "accuracy_gpu"
    done = {(row["potential"], row["system"].split(",")[0]) for row in record.current(target)}
    for name, names in POTENTIALS.items():
        path = released_systems.find(options.folder and Path(options.folder), name)
        if path is None:
            print(f"{name}: not in {options.folder}", flush=True)
            continue
        potential = torchmdx.load(path, dtype=torch.float32, device=options.device)
        for system in names:
            wanted = not chosen or name in chosen or f"{name}/{system}" in chosen
            if not wanted or (options.resume and (name, system) in done):
                continue
            if len(structure(system)[1]) <= options.most_atoms:
                record.update(target, rows_of(name, potential, system), ("potential", "system", "ran_on"))


if __name__ == "__main__":
    main()
