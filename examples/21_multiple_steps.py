"""Multiple time steps: a fast potential runs four steps for each evaluation of the full one, at the same energies.

`python examples/21_multiple_steps.py fast.safetensors` uses the fast potential of a file. The default here is the full
one, 3% softer, which is no faster: it shows what the error of a fast potential does to the energy.
"""

import copy
import sys

import numpy as np
import torch
from ase.build import molecule

import torchmdx

OUTER = {"single steps": 1, "outer steps of 2 fs": 4, "outer steps of 4 fs": 8}  # steps of 0.5 fs


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    potential = torchmdx.load(dtype=torch.float32, device=device)
    if len(sys.argv) > 1:
        fast = torchmdx.load(sys.argv[1], dtype=torch.float32, device=device)
    else:
        fast = copy.deepcopy(potential)
        fast.scale *= 0.97
    system = torchmdx.System.from_ase(molecule("CH3CH2OH"))
    for name, inner in OUTER.items():
        further = {} if inner == 1 else {"fast": fast, "inner": inner}
        options = dict(integrator="verlet", timestep=0.5, temperature=600, seed=1, **further)
        dynamics = torchmdx.Dynamics(potential, system, **options)
        energies = [found.energy[0] + found.kinetic_energy[0] for found in dynamics.snapshots(400, every=8)]
        print(
            f"{name}: the total energy varies by {1000 * np.std(energies):.2f} meV in {dynamics.snapshot().time:.0f} fs"
        )


if __name__ == "__main__":
    main()
