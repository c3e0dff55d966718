"""Training a TensorNet2 with an Ewald sum on energies and forces of a molten salt, whose charges it finds.

The labels are those of an analytic force field: charges of ±0.8 e and the repulsion of Fumi and Tosi, 32 ions in a box
of 10 Å at 3,000 K. The network finds the charges, up to their sign, in a liquid where each ion has many neighbours. The
known answer: the energy of a wave of charge that is twice as long as the box of the training.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from torchmdx import Batch, Potential, System, TensorNet2Config, evaluate
from torchmdx.models import CoulombConfig

CHARGE, BOX, TEMPERATURE, STEP = 0.8, 10.0, 3000.0, 2.0  # e, Å, K, fs
COULOMB, ALPHA, LONGEST = 14.399645, 0.6, 5.2  # eV Å, 1/Å, 1/Å
SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(16)
RADII, FACTORS = {1: 1.17, -1: 1.585}, {2: 1.25, 0: 1.0, -2: 0.75}  # Å; by the sum of two signs
COPIES, SPACING, TRAINED, CUTOFF, STEPS, BATCH = 6, 40, 24, 5.0, 240, 4
NETWORK = TensorNet2Config(num_channels=16, num_layers=1, num_charges=1, num_radial=12, cutoff=CUTOFF, max_z=18)


def force_field(positions: torch.Tensor, boxes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies [F], eV, and forces [F,N,3], eV/Å, of frames [F,N,3] in so many boxes in a row along x."""
    x = positions.clone().requires_grad_(True)
    lengths, signs = BOX * torch.tensor([boxes, 1.0, 1.0], dtype=torch.float64), SIGNS.repeat(boxes)
    first, second = np.triu_indices(len(signs), 1)
    apart = x[:, first] - x[:, second]
    r = torch.linalg.vector_norm(apart - lengths * (apart / lengths).round(), dim=-1)
    kinds = [(int(signs[a]), int(signs[b])) for a, b in zip(first, second, strict=True)]
    sums, factors = (
        torch.tensor(v) for v in zip(*((RADII[a] + RADII[b], FACTORS[a + b]) for a, b in kinds), strict=True)
    )
    near = (COULOMB * CHARGE**2 * signs[first] * signs[second] * torch.erfc(ALPHA * r) / r).sum(-1)
    repulsion = (0.211 * factors * torch.exp((sums - r) / 0.317)).sum(-1)
    most = [int(LONGEST * float(length) / (2 * torch.pi)) for length in lengths]
    k = 2 * torch.pi / lengths * torch.cartesian_prod(*[torch.arange(-n, n + 1.0, dtype=torch.float64) for n in most])
    square = (k**2).sum(-1)
    k, square = k[(square > 0) & (square < LONGEST**2)], square[(square > 0) & (square < LONGEST**2)]
    phases = x @ k.T
    waves = [(CHARGE * signs[:, None] * wave(phases)).sum(1) ** 2 for wave in (torch.cos, torch.sin)]
    far = 2 * torch.pi * COULOMB / lengths.prod() * (torch.exp(-square / (4 * ALPHA**2)) / square * sum(waves)).sum(-1)
    own = COULOMB * ALPHA / torch.pi**0.5 * CHARGE**2 * len(signs)
    energy = near + repulsion + far - own
    return energy.detach(), -torch.autograd.grad(energy.sum(), x)[0]


def batch_of(positions: torch.Tensor, boxes: int = 1) -> Batch:
    cell, numbers = BOX * np.diag([boxes, 1.0, 1.0]), np.tile([11, 17], 16 * boxes)
    return Batch.from_systems([System.create(x.numpy(), numbers, cell, True) for x in positions])


def melts() -> torch.Tensor:
    """Frames [F,N,3] of Langevin simulations that begin on the lattice of rock salt."""
    generator = torch.Generator().manual_seed(0)
    sites = BOX / 4 * torch.cartesian_prod(*[torch.arange(4.0, dtype=torch.float64)] * 3)[::2]
    even = (sites / BOX * 4).round().sum(-1) % 2 == 0
    positions = torch.stack([sites[even], sites[~even]], 1).flatten(0, 1).repeat(COPIES, 1, 1)
    masses = torch.tensor([22.99, 35.45], dtype=torch.float64).repeat(16)[:, None] * 103.64  # eV fs²/Å²
    thermal, keep, found = (8.617e-5 * TEMPERATURE / masses).sqrt(), np.exp(-0.02 * STEP), []
    velocities, forces = torch.zeros_like(positions), force_field(positions)[1]
    for step in range(1, 8 * SPACING + 1):
        velocities = velocities + 0.5 * STEP * forces / masses
        noise = torch.randn(positions.shape, generator=generator, dtype=torch.float64)
        positions = positions + 0.5 * STEP * velocities
        velocities = keep * velocities + (1 - keep**2) ** 0.5 * thermal * noise
        positions = positions + 0.5 * STEP * velocities
        forces = force_field(positions)[1]
        velocities = velocities + 0.5 * STEP * forces / masses
        found += [positions] if step > 3 * SPACING and step % SPACING == 0 else []
    return torch.cat(found)


def trained(priors: list[CoulombConfig], positions: torch.Tensor) -> Potential:
    """A potential trained on frames, whose batches are random."""
    energy, forces = force_field(positions)
    torch.manual_seed(0)
    potential = Potential(NETWORK, priors)
    potential.shift.fill_(float(energy.mean()))
    optimizer = torch.optim.Adam(potential.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        chosen = torch.randperm(len(positions))[:BATCH]
        found = evaluate(potential, batch_of(positions[chosen]), create_graph=True)
        off = (found.energy - energy[chosen]) / len(SIGNS)
        loss = 10 * off.square().mean() + (found.forces - forces[chosen].flatten(0, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return potential.requires_grad_(False)


def waves(positions: torch.Tensor, amplitudes: np.ndarray) -> torch.Tensor:
    """Two boxes in a row [W,2N,3], in which cations and anions move against each other along a wave of this length."""
    long = torch.cat([positions, positions + torch.tensor([BOX, 0.0, 0.0])])
    wave = torch.cos(torch.pi * long[:, 0] / BOX) * SIGNS.repeat(2)
    return torch.stack([long + a * wave[:, None] * torch.tensor([1.0, 0.0, 0.0]) for a in amplitudes])


def main() -> None:
    positions = melts()
    known, amplitudes = force_field(positions[TRAINED:])[1].flatten(0, 1), np.linspace(-0.2, 0.2, 9)
    moved = waves(positions[-1], amplitudes)
    curves = {"known": force_field(moved, 2)[0]}
    # The charges of the last layer alone count.
    models = {"with Ewald": [CoulombConfig(periodic="ewald", cutoff=CUTOFF, weights=(0.0, 1.0))], "without": []}
    for name, priors in models.items():
        potential = trained(priors, positions[:TRAINED])
        found = evaluate(potential, batch_of(positions[TRAINED:]))
        error = 1000 * (found.forces - known).square().mean().sqrt()
        print(f"{name}: forces of other frames {error:.0f} of {1000 * known.square().mean().sqrt():.0f} meV/Å")
        if priors:
            of_sodium, of_chlorine = found.charges.unflatten(0, (-1, 2)).unbind(1)
            print(f"charges {of_sodium.mean():+.3f} ({of_sodium.std():.3f}) and {of_chlorine.mean():+.3f} e")
        curves[name] = evaluate(potential, batch_of(moved, 2)).energy
    for name, values in curves.items():
        values = values - values[len(values) // 2]
        print(f"{name}, eV: {np.array2string(values.numpy(), precision=3)}")
        plt.plot(amplitudes, values, "o" if name == "known" else "-", label=name)
    plt.xlabel("amplitude of a wave of 20 Å / Å"), plt.ylabel("energy / eV"), plt.legend()
    Path("out").mkdir(exist_ok=True)
    plt.savefig(Path("out") / "melt.svg")


if __name__ == "__main__":
    main()
