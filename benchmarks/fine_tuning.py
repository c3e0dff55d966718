"""Times training steps of a released potential of matgl on crystals, beside those of torchmdx's own network.

    python -m benchmarks.fine_tuning FOLDER

FOLDER: of a potential that matgl saved, such as TensorNet-PES-MatPES-PBE-2025.2. Frames are rattled cells of SrTiO3, 40
atoms each; energies, forces and stresses are in the loss; float32. own: a network that torchmdx makes by default, with
layers, channels and cutoff of the released one. ms: of a step, as in training.py. Labels are noise,
which does not change the work. Results go to fine_tuning.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.spacegroup import crystal

from benchmarks.record import write
from benchmarks.training import milliseconds
from torchmdx import Potential, TensorNetConfig, load
from torchmdx.datasets.frames import Frames
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import LabelledBatch, label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import TrainStep

BATCHES = (4, 16, 64)
SITES = [(0.5, 0.5, 0.5), (0, 0, 0), (0.5, 0, 0)]


def frame(rng: np.random.Generator) -> Frames:
    cell: ase.Atoms = crystal(["Sr", "Ti", "O"], SITES, spacegroup=221, cellpar=[3.905] * 3 + [90] * 3) * (2, 2, 2)
    return Frames.single(
        cell.positions + 0.05 * rng.normal(size=cell.positions.shape),
        cell.numbers,
        cell=cell.cell.array,
        pbc=[True] * 3,
        energy=rng.normal(),
        forces=rng.normal(size=cell.positions.shape),
        stress=0.01 * np.eye(3),
    )


def batch(size: int, seed: int, cutoff: float) -> LabelledBatch:
    rng = np.random.default_rng(seed)
    made = Frames.concatenate([frame(rng) for _ in range(size)])
    labelled = label(
        made, np.arange(size), num_atoms=made.num_atoms, num_systems=size, cutoff=cutoff, dtype=torch.float32
    )
    return labelled.to(torch.device("cuda"))


def row(name: str, potential: Potential, size: int, record: bool) -> dict[str, Any]:
    step = TrainStep(potential, LossSection(), OptimizerSection(), record=record)
    step.set_rates(1e-5, (1.0, 1.0, 1.0))
    batches = [batch(size, seed, potential.cutoff) for seed in range(4)]
    turn = iter(range(10**9))
    torch.cuda.reset_peak_memory_stats()
    ms = milliseconds(lambda: step(batches[next(turn) % 4]), 20 if record else 5)
    memory = torch.cuda.max_memory_allocated() / 2**30
    name += "" if record else ", not recorded"
    return dict(by=name, batch=size, atoms=40 * size, ms=round(ms, 3), gb=round(memory, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    rows = []
    for size in BATCHES:
        for name, record in (("released", True), ("released", False), ("own", True)):
            potential = load(options.folder)
            if name == "own":
                config = potential.config
                potential = Potential(
                    TensorNetConfig(
                        num_layers=config.num_layers, num_channels=config.num_channels, cutoff=config.cutoff
                    )
                )
            rows.append(row(name, potential.cuda().requires_grad_(True), size, record))
            print(rows[-1], flush=True)
            torch.cuda.empty_cache()
    print(write("fine_tuning", rows))


if __name__ == "__main__":
    main()
