"""Folders as matgl writes them, and what matgl 4.1.2 computed for them in float64."""

import json
from pathlib import Path

import numpy as np
import torch
from ase import Atoms

from torchmdx import Batch, System, evaluate

DATA = Path(__file__).parent / "data" / "matgl"
NAMES = ("bessel-2", "bessel-3", "gauss", "so3")
GPA = 160.21766208  # of 1 eV/Å³


def frames(name: str | Path) -> list[dict]:
    """Structures with energy, eV, forces, eV/Å, and stress, GPa; name: of a folder, or its path."""
    return json.loads((DATA / f"{name}.json").read_text())


def structure(frame: dict) -> System:
    cell = frame["cell"] if frame.get("cell") else None
    return System.from_ase(Atoms(frame["numbers"], frame["positions"], cell=cell, pbc=frame.get("pbc")))


def description(name: str = "gauss") -> dict:
    """The model.json of a folder."""
    return json.loads((DATA / name / "model.json").read_text())


def state(name: str = "gauss") -> dict[str, torch.Tensor]:
    """The tensors of a folder."""
    return torch.load(DATA / name / "state.pt", weights_only=True)


def write(folder: Path, description: dict, tensors: dict[str, torch.Tensor]) -> Path:
    """A folder of this description and these tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps(description))
    torch.save(tensors, folder / "state.pt")
    return folder


def errors(result, frame: dict) -> tuple[float, float, float]:
    """Largest deviations of energy, eV, forces, eV/Å, and stress, GPa."""
    of_energy = abs(float(result.energy) - frame["energy"])
    of_forces = np.abs(result.forces.numpy() - frame["forces"]).max()
    of_stress = (
        np.abs(result.stress[0].numpy() * GPA - frame["stress_GPa"]).max()
        if "stress_GPa" in frame and all(frame["pbc"])
        else 0.0
    )
    return of_energy, float(of_forces), float(of_stress)


def energy_of(potential, frame: dict) -> float:
    return float(evaluate(potential, Batch.from_systems([structure(frame)])).energy)
