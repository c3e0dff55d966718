"""Errors of a fast model of organic-1 on molecules of organic-1's test set, in dynamics at 300 K.

python evaluate.py organic-1-fast.safetensors -o accuracy.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ase.io
import numpy as np
import torch

import torchmdx
from torchmdx import Batch, System
from torchmdx.dynamics import Dynamics, Langevin

MOLECULES = Path(__file__).resolve().parent.parent / "organic_1" / "dynamics_start.xyz"
EQUILIBRATION, SPACING, FRAMES = 200, 40, 5  # steps of 0.5 fs


def root_mean_square(values: np.ndarray) -> float:
    """Of all values."""
    return float(np.sqrt((values**2).mean()))


def main() -> None:
    """Writes the errors of each molecule and element, and prints those of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fast")
    parser.add_argument("-o", "--output", default="accuracy.json")
    parser.add_argument("--temperature", type=float, default=300.0)
    args = parser.parse_args()
    atoms = ase.io.read(MOLECULES, ":")
    systems = [System.from_ase(one) for one in atoms]
    batch = Batch.from_systems(systems)
    given = dict(dtype=torch.float32, device="cuda" if torch.cuda.is_available() else "cpu")
    potential = torchmdx.load("organic-1", **given)
    fast = torchmdx.CapturedStep(torchmdx.load(args.fast, **given), batch)
    dynamics = Dynamics(potential, systems, integrator=Langevin(friction=20.0), temperature=args.temperature, seed=1)
    dynamics.run(EQUILIBRATION)
    forces, errors = [], []
    for snapshot in dynamics.snapshots(FRAMES * SPACING, every=SPACING):
        forces.append(snapshot.forces.copy())
        errors.append(torch.as_tensor(fast(snapshot.positions).forces).cpu().numpy() - snapshot.forces)
    force, error = np.array(forces), np.array(errors)
    numbers, system = batch.atomic_numbers.numpy(), batch.system_index.numpy()
    found = {
        "temperature": args.temperature,
        "frames": FRAMES,
        "rmse": root_mean_square(error),
        "relative": root_mean_square(error) / root_mean_square(force),
        "mae": float(abs(error).mean()),
        "molecules": {one.info["molecule"]: root_mean_square(error[:, system == k]) for k, one in enumerate(atoms)},
        "elements": {
            ase.data.chemical_symbols[z]: root_mean_square(error[:, numbers == z]) for z in np.unique(numbers)
        },
    }
    Path(args.output).write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(atoms)} molecules: {1e3 * found['rmse']:.0f} meV/Å RMSE, {found['relative']:.1%} of that of forces")


if __name__ == "__main__":
    main()
