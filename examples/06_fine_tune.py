"""Fine-tunes the potential included in torchmdx on 40 labelled geometries of one molecule.

`references: shift` fits the reference energies of the elements to the energy zero of the new labels.
"""

import shutil
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms

import torchmdx
from torchmdx.training import make_config, train

LABELLED = Path(__file__).parent / "data" / "ethanol.xyz"
OUT = Path("out") / "06_fine_tune"
CONFIG = {
    "data": {"path": str(OUT / "few.xyz"), "validation": 10, "test": 0},
    "finetune": {"checkpoint": "organic-1", "references": "shift"},
    "optimizer": {"learning_rate": 2e-4},
    "training": {"epochs": 6, "batch_size": 4},
    "output": {"directory": str(OUT / "run"), "report": False},
}


def errors(frames: list[Atoms], calculator: torchmdx.Calculator) -> tuple[float, float]:
    """Mean absolute errors: energies relative to their mean, meV; forces, meV/Å."""
    energies, forces = [], []
    for labelled in frames:
        atoms = Atoms(labelled.numbers, labelled.positions, calculator=calculator)
        energies.append(atoms.get_potential_energy() - labelled.get_potential_energy())
        forces.append(np.abs(atoms.get_forces() - labelled.get_forces()).mean())
    return 1000 * float(np.abs(energies - np.mean(energies)).mean()), 1000 * float(np.mean(forces))


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    frames = ase.io.read(LABELLED, ":")
    ase.io.write(OUT / "few.xyz", frames[:250:5])
    unseen = frames[250:]
    before = errors(unseen, torchmdx.Calculator())
    status = train(make_config(CONFIG))
    if status:
        raise SystemExit(status)
    after = errors(unseen, torchmdx.Calculator(OUT / "run" / "best.safetensors"))
    print(f"{len(unseen)} geometries outside the training set; mean absolute errors of relative energies and forces:")
    print("  before  {:>7.1f} meV  {:>7.1f} meV/Å".format(*before))
    print("  after   {:>7.1f} meV  {:>7.1f} meV/Å".format(*after))


if __name__ == "__main__":
    main()
