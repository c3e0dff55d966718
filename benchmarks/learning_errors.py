"""Errors of learned potentials on test frames, and barriers of a proton transfer, for benchmarks/learning.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.calculators.calculator import Calculator as AseCalculator
from ase.constraints import FixInternals
from ase.io import read
from ase.optimize import BFGS

import torchmdx
from benchmarks.learning_cases import ACCEPTOR, DONOR, PROTON, malonaldehyde
from torchmdx import Ensemble, Potential, load

ALL = "all"  # the frames of all sets
SCANNED = np.linspace(-0.7, 0.7, 15)  # Å, distance to the donor less that to the acceptor
CONVERGED, MOST_STEPS = 0.02, 60  # eV/Å, and of a relaxation
LARGEST = 20.0  # eV: energies beyond it are those of a molecule that has fallen apart


def errors(potential: Path, tests: dict[str, Path]) -> list[dict[str, Any]]:
    """Root mean square errors on each set and on all, of the potential and of one member of it."""
    whole = load(potential, device="cpu")
    members = list(whole) if isinstance(whole, Ensemble) else [whole]
    found = {name: _differences(whole, path) for name, path in tests.items()}
    own = [{name: _differences(one, path) for name, path in tests.items()} for one in members]
    rows = []
    for name, chosen in {**{name: [name] for name in tests}, ALL: list(tests)}.items():
        energy, forces = _rms(found, chosen)
        largest, uncertain = (np.concatenate([found[one][k] for one in chosen]) for k in (2, 3))
        each = [_rms(one, chosen) for one in own]
        rows.append(
            {
                "set": name,
                "force_rmse_meV": forces,
                "energy_rmse_meV": energy,
                "rank": rank_correlation(largest, uncertain),
                "member_force_rmse_meV": float(np.mean([one[1] for one in each])),
                "member_energy_rmse_meV": float(np.mean([one[0] for one in each])),
            }
        )
    return rows


Differences = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _differences(potential: Potential | Ensemble, path: Path) -> Differences:
    """Of energies per atom [S] and components of forces [3N], meV; the largest error and uncertainty of frames [S]."""
    calculator = torchmdx.Calculator(potential, device="cpu")
    energies, forces, largest, uncertain = [], [], [], []
    for frame in read(path, index=":"):
        atoms = ase.Atoms(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc, calculator=calculator)
        difference = atoms.get_forces() - frame.get_forces()
        energies.append((atoms.get_potential_energy() - frame.get_potential_energy()) / len(atoms))
        forces.append(difference.ravel())
        largest.append(np.linalg.norm(difference, axis=1).max())
        known = calculator.results.get("forces_spread", calculator.results.get("energies_uncertainty", [np.nan]))
        uncertain.append(np.max(known))
    return 1e3 * np.array(energies), 1e3 * np.concatenate(forces), np.array(largest), np.array(uncertain)


def _rms(found: dict[str, Differences], chosen: list[str]) -> tuple[float, float]:
    energy, forces = (np.concatenate([found[name][k] for name in chosen]) for k in (0, 1))
    return float(np.sqrt((energy**2).mean())), float(np.sqrt((forces**2).mean()))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's coefficient; None for values that are not known."""
    if np.isnan(b).any():
        return None
    return float(np.corrcoef(*(np.argsort(np.argsort(one)) for one in (a, b)))[0, 1])


def coordinate(atoms: ase.Atoms) -> float:
    """The distance of the proton to its donor less that to the acceptor, Å."""
    return float(atoms.get_distance(DONOR, PROTON) - atoms.get_distance(ACCEPTOR, PROTON))


def scan(calculator: AseCalculator) -> tuple[list[float], list[ase.Atoms]]:
    """Relaxed energies along the coordinate, eV from the first, and the structures; ends where a relaxation fails."""
    atoms, energies, found = malonaldehyde(), [], []
    for value in SCANNED:
        atoms.set_constraint()
        held = [[float(value), [[DONOR, PROTON, 1.0], [ACCEPTOR, PROTON, -1.0]]]]
        atoms.set_constraint(FixInternals(bondcombos=held, epsilon=1e-5))
        atoms.calc = calculator
        try:
            atoms.set_positions(atoms.get_positions())  # which moves the atoms to the value
            BFGS(atoms, logfile=None).run(fmax=CONVERGED, steps=MOST_STEPS)
        except (ValueError, RuntimeError, np.linalg.LinAlgError):  # a molecule that has fallen apart
            break
        energies.append(float(atoms.get_potential_energy()))
        if abs(energies[-1] - energies[0]) > LARGEST:
            break
        found.append(ase.Atoms(atoms.numbers, atoms.positions))
    return [energy - energies[0] for energy in energies[: len(found)]], found


@cache
def reference() -> tuple[list[float], list[ase.Atoms]]:
    """The scan of the reference."""
    from torchmdx.datasets.labelling.calculators import Choice
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure

    return scan(Choice("gfn2-xtb").make(UnlabelledStructure.from_ase(malonaldehyde())))


def barrier(potential: Path) -> dict[str, Any]:
    """Barriers and profiles of a potential and of the reference, eV, also on the structures of the reference."""
    calculator = torchmdx.Calculator(potential, device="cpu")
    wanted, structures = reference()
    profile, _ = scan(calculator)
    on_path = []
    for atoms in structures:
        atoms.calc = calculator
        on_path.append(atoms.get_potential_energy())
    return {
        "barrier": max(profile) if len(profile) == len(SCANNED) else None,
        "reference_barrier": max(wanted),
        "profile": [round(energy, 5) for energy in profile],
        "reference_profile": [round(energy, 5) for energy in wanted],
        "on_reference_path": [round(energy - on_path[0], 5) for energy in on_path],
    }
