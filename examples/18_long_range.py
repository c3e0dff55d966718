"""Training a TensorNet2 with an Ewald sum on energies and forces of ion pairs that are farther apart than its cutoff.

The labels are those of charges of ±0.8 e in a periodic box. With a Coulomb energy the network finds the charges, up to
their sign, and the binding curve. Without one it has nothing to tell one distance from another.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from torchmdx import Batch, Potential, System, TensorNet2Config, evaluate
from torchmdx.models import CoulombConfig

CHARGE, BOX, CUTOFF, STEPS = 0.8, 20.0, 4.0, 100  # e, Å, Å
TRAINED, SHOWN = np.linspace(4.8, 8.5, 6), np.linspace(4.8, 10.0, 14)
NETWORK = TensorNet2Config(num_channels=8, num_layers=1, num_charges=1, cutoff=CUTOFF, max_z=18)


def pairs(distances: np.ndarray) -> Batch:
    """Na and Cl in a periodic box, once for each distance."""
    options = dict(partial_charges=[CHARGE, -CHARGE], dtype=torch.float32)
    places = ([[0, 0, 0], [0.6 * r, 0.0, 0.8 * r]] for r in distances)
    return Batch.from_systems([System.create(x, [11, 17], BOX * np.eye(3), True, **options) for x in places])


def trained(priors: list[CoulombConfig], batch: Batch, energy: torch.Tensor, forces: torch.Tensor) -> Potential:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam((potential := Potential(NETWORK, priors)).parameters(), lr=0.02)
    for _ in range(STEPS):
        found = evaluate(potential, batch, create_graph=True)
        loss = (found.energy - energy).square().mean() + 10 * (found.forces - forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return potential.requires_grad_(False)


def main() -> None:
    known = Potential(NETWORK, [CoulombConfig(charges="given", periodic="ewald")]).requires_grad_(False)
    known.scale.zero_()  # its network adds nothing
    labels, curves = evaluate(known, pairs(TRAINED)), {"known": evaluate(known, pairs(SHOWN)).energy}
    # The charges of the last layer alone count.
    models = {"with Ewald": [CoulombConfig(periodic="ewald", weights=(0.0, 1.0))], "without": []}
    for name, priors in models.items():
        found = evaluate(trained(priors, pairs(TRAINED), labels.energy, labels.forces), pairs(SHOWN))
        curves[name] = found.energy
        print(f"{name}: charges {found.charges[0]:+.3f} and {found.charges[1]:+.3f} e, known ±{CHARGE} e")
    for name, values in curves.items():
        print(f"{name}, eV: {np.array2string(values.numpy(), precision=4)}")
        plt.plot(SHOWN, values, "o" if name == "known" else "-", label=name)
    plt.xlabel("distance / Å"), plt.ylabel("energy / eV"), plt.legend()
    Path("out").mkdir(exist_ok=True)
    plt.savefig(Path("out") / "long_range.svg")


if __name__ == "__main__":
    main()
