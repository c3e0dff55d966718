"""An energy kept beside a potential's weights, so that loading can tell whether both still mean the same."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from torchmdx.forces import evaluate
from torchmdx.models.potential import Potential
from torchmdx.system import Batch, System

# Energies are summed in float64 by the same formulas: they differ between machines by rounding alone.
TOLERANCE = 1e-6  # eV, and relative
_POSITIONS = [[0.0, 0.0, 0.0], [1.1, 0.1, -0.2], [-0.4, 1.2, 0.3], [0.3, -0.5, 1.3]]
_CELL = [[3.4, 0.0, 0.2], [0.5, 3.7, 0.0], [-0.3, 0.4, 3.9]]
_CHARGES = [0.4, -0.1, 0.3, -0.6]


def record(potential: Potential) -> dict[str, Any]:
    """A small cation and a small crystal with their energies, eV. Raises ValueError where these are not finite."""
    numbers = [number for number in potential.card.elements or (1, 6, 7, 8) if number <= potential.max_z]
    structures = [
        dict(numbers=[numbers[k % len(numbers)] for k in range(4)], positions=_POSITIONS, charges=_CHARGES, **more)
        for more in (dict(cell=None, charge=1.0), dict(cell=_CELL, charge=0.0))
    ]
    energies = _energies(potential, structures)
    if not all(map(math.isfinite, energies)):
        raise ValueError(f"a potential must give finite energies, got {energies} for {structures}")
    return {"structures": structures, "energies": energies}


def recheck(potential: Potential, recorded: dict[str, Any], origin: str) -> None:
    """Raises ValueError, naming `origin`, unless a potential gives the recorded energies."""
    wanted = [float(energy) for energy in recorded["energies"]]
    found = _energies(potential, recorded["structures"])
    for energy, expected in zip(found, wanted, strict=True):
        if not abs(energy - expected) <= TOLERANCE * max(1.0, abs(expected)):
            raise ValueError(
                f"{origin!r} records an energy of {expected:.9f} eV for a small structure, which its weights give as "
                f"{energy:.9f} eV here: the file is damaged, or was written for other formulas"
            )


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
