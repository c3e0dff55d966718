"""Reference energies stored with a potential's weights, which loading compares with the energies of the weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.structures.system import Batch, System

# Energies are summed in float64 with the same formulas, so machines differ only by rounding.
TOLERANCE = 1e-6  # eV, and relative
# Limits on the structures in a file, so that their evaluation takes at most a second and a gigabyte.
MOST_STRUCTURES, MOST_ATOMS, MOST_NUMBERS = 16, 64, 1 << 27
_POSITIONS = [[0.0, 0.0, 0.0], [1.1, 0.1, -0.2], [-0.4, 1.2, 0.3], [0.3, -0.5, 1.3]]
_CELL = [[3.4, 0.0, 0.2], [0.5, 3.7, 0.0], [-0.3, 0.4, 3.9]]
_CHARGES = [0.4, -0.1, 0.3, -0.6]


def record(potential: Potential) -> dict[str, Any]:
    """A small cation and a small crystal with their energies, eV. Raises ValueError if these are not finite."""
    numbers = [number for number in potential.card.elements or (1, 6, 7, 8) if number <= potential.max_z]
    structures = [
        dict(numbers=[numbers[k % len(numbers)] for k in range(4)], positions=_POSITIONS, charges=_CHARGES, **more)
        for more in (dict(cell=None, charge=1.0), dict(cell=_CELL, charge=0.0))
    ]
    _require_small(potential, structures, "a checkpoint")
    energies = _energies(potential, structures)
    if not all(map(math.isfinite, energies)):
        raise ValueError(f"a potential must give finite energies, got {energies} for {structures}")
    return {"structures": structures, "energies": energies}


def recheck(potential: Potential, recorded: dict[str, Any], origin: str) -> None:
    """Raises ValueError, naming `origin`, unless the potential reproduces the recorded energies."""
    stored, structures = _checked(recorded, origin)
    _require_small(potential, structures, origin)
    found = _energies(potential, structures)
    for energy, expected in zip(found, stored, strict=True):
        if not abs(energy - expected) <= TOLERANCE * max(1.0, abs(expected)):
            raise ValueError(
                f"{origin!r} records an energy of {expected:.9f} eV for a small structure, but its weights give "
                f"{energy:.9f} eV: the file is damaged, or was written for other formulas"
            )


def _checked(recorded: Any, origin: str) -> tuple[list[float], list[dict[str, Any]]]:
    """Energies and structures. Raises ValueError, naming `origin`, unless there are equally many of each."""
    try:
        energies, structures = recorded["energies"], recorded["structures"]
        stored = [float(energy) for energy in energies]
        atoms = [len(held["numbers"]) for held in structures]
        if not 0 < len(stored) == len(atoms) <= MOST_STRUCTURES or max(atoms) > MOST_ATOMS:
            raise ValueError(f"{len(stored)} energies of structures of {atoms[:MOST_STRUCTURES]} atoms")
    except (TypeError, LookupError, ValueError, OverflowError) as error:
        raise ValueError(f"{origin!r} records no readable energies of small structures ({error})") from error
    return stored, structures


def _require_small(potential: Potential, structures: list[dict[str, Any]], origin: str) -> None:
    """Raises ValueError if a periodic structure is too dense, or a cutoff too long, for a quick evaluation."""
    channels = getattr(potential.config, "num_channels", 1)
    for held in structures:
        if held["cell"] is None:
            continue
        cell = torch.tensor(held["cell"], dtype=torch.float64, device="cpu")
        near, far = (_num_pairs(cell, len(held["numbers"]), r) for r in (potential.config.cutoff, potential.cutoff))
        if not 9 * channels * near + 9 * far <= MOST_NUMBERS:
            raise ValueError(
                f"the recorded structures of {origin!r} must be small, got one of about {far:.3g} pairs of atoms "
                f"within {potential.cutoff} Å"
            )


def _num_pairs(cell: Tensor, num_atoms: int, cutoff: float) -> float:
    """Approximate upper bound: atoms of all cells that overlap the sphere of the cutoff around each atom."""
    volume = float(torch.linalg.det(cell).abs())
    reach = cutoff + float(torch.linalg.vector_norm(cell, dim=-1).sum())
    return num_atoms**2 * 4 / 3 * math.pi * reach**3 / volume if volume > 0 else math.inf


def _energies(potential: Potential, structures: list[dict[str, Any]]) -> list[float]:
    batch = Batch.from_systems(
        [
            System.create(
                held["positions"],
                held["numbers"],
                held["cell"],
                None if held["cell"] is None else True,
                held["charge"],
                held["charges"],
            )
            for held in structures
        ]
    )
    exact = copy.deepcopy(potential).cpu().double()
    with torch.no_grad():
        return [float(energy) for energy in evaluate(exact, batch, forces=False).energy]
