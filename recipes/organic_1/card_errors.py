"""Errors on labelled frames of unseen molecules, by kind, charge, size and force."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols
from ase.formula import Formula

import torchmdx
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.store import Store
from torchmdx.report.predictor import predict
from torchmdx.structures.units import KCAL_PER_MOL

MILLI = 1e3
SIZES = ((1, 12), (13, 18), (19, 24), (25, 30), (31, 40), (41, 56), (57, 80))
FORCES = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0)  # eV/Å, limits of the largest component in a frame
KINDS = {
    "molecules": "molecules, made",
    "ions": "made of neutral molecules",
    "ionpairs": "the same next to another molecule",
    "dimers": "pairs of molecules",
    "clusters": "clusters",
    "md300": "dynamics, 300 K",
    "md600": "dynamics, 600 K",
    "md1000": "dynamics, 1000 K",
    "heldout": "large molecules",
}
WORST = 6  # compositions that are named
LEAST_FRAMES = 4  # of one composition, for its relative energies


@dataclass(frozen=True, eq=False)
class Compared:
    """Frames with labels and predictions.

    counts, charges, energy, predicted_energy [F]; numbers, frame [N]; forces, predicted_forces [N,3]; kinds [F];
    composition [F]: the same number for the same atoms in the same order and the same charge.
    """

    counts: np.ndarray
    numbers: np.ndarray
    charges: np.ndarray
    energy: np.ndarray
    predicted_energy: np.ndarray
    forces: np.ndarray
    predicted_forces: np.ndarray
    frame: np.ndarray
    kinds: np.ndarray
    composition: np.ndarray

    def force_errors(self) -> np.ndarray:
        """Mean absolute error of the force components of each frame, meV/Å."""
        total = np.bincount(self.frame, np.abs(self.predicted_forces - self.forces).sum(1), len(self.counts))
        return MILLI * total / (3 * self.counts)

    def energy_errors(self) -> np.ndarray:
        """Signed, meV/atom."""
        return MILLI * (self.predicted_energy - self.energy) / self.counts

    def bound(self) -> np.ndarray:
        """Label and prediction [F,2], eV/atom, less energies of atoms and of charge that fit the labels best."""
        elements, which = np.unique(self.numbers, return_inverse=True)
        content = np.zeros((len(self.counts), len(elements)))
        np.add.at(content, (self.frame, which), 1.0)
        content = np.column_stack([content, self.charges])
        atoms = content @ np.linalg.lstsq(content, self.energy, rcond=None)[0]
        both = np.stack([self.energy, self.predicted_energy], 1)
        return (both - atoms[:, None]) / self.counts[:, None]

    def largest_force(self) -> np.ndarray:
        """Largest component in each frame, eV/Å."""
        found = np.zeros(len(self.counts))
        np.maximum.at(found, self.frame, np.abs(self.forces).max(1))
        return found


def compare(checkpoint: str | Path | None, data: list[Path], most: int, seed: int) -> Compared:
    """Predictions for the frames of .npz files of `archive.py unpack`; of at most `most`, drawn at random."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = np.concatenate([np.loadtxt(path.with_suffix(".kinds.txt"), dtype=str) for path in data])
    with tempfile.TemporaryDirectory() as folder:
        convert(data, Path(folder) / "frames.store", log=lambda text: None)
        store = Store.open(Path(folder) / "frames.store")
        if len(store) != len(names):
            raise ValueError(f"the .kinds.txt next to {data} must name {len(store)} frames, got {len(names)}")
        chosen = np.arange(len(store))
        if len(chosen) > most:
            chosen = np.sort(np.random.default_rng(seed).choice(len(store), most, replace=False))
        potential = torchmdx.load(checkpoint, dtype=torch.float32, device=device)
        found = predict(potential, store, chosen, device=device, dtype=torch.float32)
    frames = found.frames
    index = np.repeat(np.arange(len(frames.counts)), frames.counts)
    parts = np.split(frames.atomic_numbers, np.cumsum(frames.counts)[:-1])
    texts = [f"{numbers.tolist()} {charge}" for numbers, charge in zip(parts, frames.charge, strict=True)]
    composition = np.unique(texts, return_inverse=True)[1]
    return Compared(
        frames.counts,
        frames.atomic_numbers,
        frames.charge,
        frames.energy,
        found.energy,
        frames.forces.astype(np.float64),
        found.forces,
        index,
        np.array([name.split("-")[1] for name in names[chosen]]),
        composition,
    )


def summary(frames: Compared, chosen: np.ndarray) -> dict[str, float]:
    """Errors of some of the frames: means over force components and over frames, medians over frames."""
    forces, energies = frames.force_errors()[chosen], frames.energy_errors()[chosen]
    weights = frames.counts[chosen]
    atoms = chosen[frames.frame]
    difference = (frames.predicted_forces - frames.forces)[atoms]
    relative = relative_errors(frames, chosen)
    return {
        "frames": int(chosen.sum()),
        "atoms": float(weights.mean()),
        "forces_mae": float(np.average(forces, weights=weights)),
        "forces_rmse": float(MILLI * np.sqrt((difference**2).mean())),
        "forces_median": float(np.median(forces)),
        "energy_mae": float(np.abs(energies).mean()),
        "energy_median": float(np.median(np.abs(energies))),
        "energy_p95": float(np.quantile(np.abs(energies), 0.95)),
        "relative_mae": float(np.abs(relative).mean() / KCAL_PER_MOL) if len(relative) else float("nan"),
    }


def relative_errors(frames: Compared, chosen: np.ndarray) -> np.ndarray:
    """Errors of energies about the mean error of their composition, eV: dynamics of one molecule depend on these."""
    error = (frames.predicted_energy - frames.energy)[chosen]
    group = np.unique(frames.composition[chosen], return_inverse=True)[1]
    number = np.bincount(group)
    mean = np.bincount(group, error) / number
    return (error - mean[group])[number[group] >= LEAST_FRAMES]


def by_group(frames: Compared, masks: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """A summary of each group that has frames."""
    return {name: summary(frames, mask) for name, mask in masks.items() if mask.any()}


def worst(frames: Compared, chosen: np.ndarray) -> list[dict[str, Any]]:
    """The compositions with the largest mean error of energy among some of the frames."""
    rows = by_composition(frames, chosen)
    return sorted(rows, key=lambda row: -row["energy_mae"])[:WORST]


def by_composition(frames: Compared, chosen: np.ndarray) -> list[dict[str, Any]]:
    """Errors of each composition: means, and the signed ones of energies of whole frames, kcal/mol."""
    error, forces = frames.energy_errors(), frames.force_errors()
    whole = (frames.predicted_energy - frames.energy) / KCAL_PER_MOL
    starts = np.cumsum(frames.counts) - frames.counts
    rows = []
    for composition in np.unique(frames.composition[chosen]):
        same = np.flatnonzero(chosen & (frames.composition == composition))
        atoms = frames.numbers[starts[same[0]] : starts[same[0]] + frames.counts[same[0]]]
        rows.append(
            {
                "formula": Formula.from_dict(
                    {chemical_symbols[z]: int(n) for z, n in Counter(atoms.tolist()).items()}
                ).format("hill"),
                "charge": int(frames.charges[same[0]]),
                "kind": KINDS[frames.kinds[same[0]]],
                "frames": len(same),
                "atoms": len(atoms),
                "energy_mae": float(np.abs(error[same]).mean()),
                "forces_mae": float(forces[same].mean()),
                "lowest": float(whole[same].min()),
                "highest": float(whole[same].max()),
            }
        )
    return rows


def errors(frames: Compared) -> dict[str, Any]:
    """All summaries of a set of frames, by the name of their table."""
    neutral, everything = frames.charges == 0, np.ones(len(frames.counts), bool)
    largest, counts = frames.largest_force(), frames.counts
    sizes = {f"{low}–{high} atoms": (counts >= low) & (counts <= high) for low, high in SIZES}
    limits = pairwise(FORCES)
    forces = {f"{low:g}–{high:g} eV/Å": (largest >= low) & (largest < high) for low, high in limits}
    return {
        "worst_neutral": worst(frames, neutral),
        "worst_ions": worst(frames, ~neutral),
        "headline": by_group(frames, {"neutral": neutral, "ions": ~neutral, "all": everything}),
        "charge": by_group(frames, {f"{q:+d}" if q else "0": frames.charges == q for q in (-1, 0, 1)}),
        "kind_neutral": by_group(frames, {text: neutral & (frames.kinds == kind) for kind, text in KINDS.items()}),
        "kind_ions": by_group(frames, {text: ~neutral & (frames.kinds == kind) for kind, text in KINDS.items()}),
        "size_neutral": by_group(frames, {name: neutral & mask for name, mask in sizes.items()}),
        "size_ions": by_group(frames, {name: ~neutral & mask for name, mask in sizes.items()}),
        "force_neutral": by_group(frames, {name: neutral & mask for name, mask in forces.items()}),
        "force_ions": by_group(frames, {name: ~neutral & mask for name, mask in forces.items()}),
    }
