"""The two sides of every comparison: GFN2-xTB by tblite, and a potential by torchmdx."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdx
from torchmdx.structures.units import BOHR, HARTREE

ACCURACY = 0.1  # of tblite, as for the labels


@dataclass(frozen=True, eq=False)
class Structure:
    """numbers [N], positions [N,3] Å, charge e."""

    numbers: np.ndarray
    positions: np.ndarray
    charge: int = 0

    def at(self, positions: np.ndarray) -> Structure:
        """The same atoms elsewhere."""
        return Structure(self.numbers, np.asarray(positions), self.charge)


def join(first: Structure, second: Structure) -> Structure:
    """Both in one."""
    return Structure(
        np.concatenate([first.numbers, second.numbers]),
        np.concatenate([first.positions, second.positions]),
        first.charge + second.charge,
    )


def gfn2(structure: Structure) -> tuple[float, np.ndarray]:
    """Energy eV and forces [N,3] eV/Å, from scratch."""
    from tblite.interface import Calculator

    calculator = Calculator(
        "GFN2-xTB", structure.numbers, structure.positions / BOHR, charge=float(structure.charge), uhf=0
    )
    calculator.set("accuracy", ACCURACY)
    calculator.set("verbosity", 0)
    result = calculator.singlepoint()
    return float(result["energy"]) * HARTREE, -np.asarray(result["gradient"]) * HARTREE / BOHR


def gfn2_atoms(structure: Structure, constraint: Any = None) -> Any:
    """ASE's atoms with tblite's calculator, for relaxations."""
    from ase import Atoms
    from tblite.ase import TBLite

    atoms = Atoms(numbers=structure.numbers, positions=structure.positions, constraint=constraint)
    atoms.calc = TBLite(method="GFN2-xTB", charge=structure.charge, multiplicity=1, accuracy=ACCURACY, verbosity=0)
    return atoms


def relax(structure: Structure, largest_force: float, most_steps: int, constraint: Any = None) -> Structure:
    """Towards a minimum of GFN2-xTB, by as many steps at most. largest_force: eV/Å, where it ends."""
    from ase.optimize import LBFGS

    atoms = gfn2_atoms(structure, constraint)
    LBFGS(atoms, logfile=None, maxstep=0.15).run(fmax=largest_force, steps=most_steps)
    return structure.at(atoms.positions)


class Network:
    """A potential, for structures of any size."""

    def __init__(self, checkpoint: str | Path | None) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.potential = torchmdx.load(checkpoint, dtype=torch.float32, device=device)
        self._pool = torchmdx.StepPool(self.potential)

    def __call__(self, structure: Structure) -> tuple[float, np.ndarray]:
        """Energy eV and forces [N,3] eV/Å."""
        system = torchmdx.System.create(structure.positions, structure.numbers, charge=float(structure.charge))
        result = self._pool(system)
        return float(result.energy[0]), np.array(result.forces, dtype=np.float64)


class Workers:
    """Processes that work with tblite, one thread each; made before torch starts threads of its own."""

    def __init__(self, count: int) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(count)

    def map(self, function: Any, jobs: Iterable[Any]) -> list[Any]:
        """The results in order."""
        return self._pool.map(function, list(jobs), chunksize=1)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.close()
        self._pool.join()
