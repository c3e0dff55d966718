"""Adds a custom model: a small SchNet that is registered, checked, trained, saved, loaded and run in ASE.

docs/add_a_model.md explains every step. Only `register_model` makes the model known to torchmdx.
"""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import units
from ase.md.verlet import VelocityVerlet
from torch import Tensor, nn

import torchmdx
from torchmdx.evaluation.conformance import check
from torchmdx.neighbors import Edges
from torchmdx.training import make_config, train

LABELLED = Path(__file__).parent / "data" / "ethanol.xyz"
RUN = Path("out") / "09_add_a_model"
CONFIG = {
    "data": {"path": str(LABELLED), "validation": 30, "test": 0},
    "model": {
        "name": "small_schnet",
        "num_channels": 32,
        "num_layers": 2,
        "cutoff": 4.5,
        "max_z": 8,
        "settings": {"width": 0.25},
    },
    "optimizer": {"learning_rate": 3e-3},
    "schedule": {"warmup_steps": 30},
    "training": {"epochs": 10, "batch_size": 8},
    "output": {"directory": str(RUN), "report": False},
}


@dataclass(frozen=True, kw_only=True)
class SmallSchNetConfig:
    """Settings: plain values with defaults, validated. torchmdx requires cutoff, max_z and num_channels."""

    num_channels: int = 64  # C, features per atom
    num_layers: int = 3
    cutoff: float = 5.0  # Å
    max_z: int = 100
    width: float = 0.2  # of the Gaussians of distance, Å

    def __post_init__(self) -> None:
        if not (self.num_channels >= 2 and self.num_layers >= 1 and self.max_z >= 1):
            raise ValueError(f"num_channels must be >= 2, num_layers and max_z >= 1, got {self}")
        if not (0 < self.width < self.cutoff < math.inf):
            raise ValueError(f"width and cutoff must be 0 < width < cutoff Å, got {self.width} and {self.cutoff}")


class SmallSchNet(nn.Module):
    """Features [N,C] of atoms from distances: x_i <- x_i + update(Σ_j filter(r_ij) · x_j)  (arXiv 1706.08566)."""

    def __init__(self, config: SmallSchNetConfig) -> None:
        super().__init__()
        self.cutoff, self.width, channels = float(config.cutoff), config.width, config.num_channels
        # A buffer, so that it follows the device and dtype of the weights.
        centres = torch.arange(0, self.cutoff, config.width)
        self.register_buffer("centres", centres, persistent=False)
        self.elements = nn.Embedding(config.max_z + 1, channels)
        self.filters = nn.ModuleList(nn.Linear(len(centres), channels) for _ in range(config.num_layers))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))
            for _ in range(config.num_layers)
        )

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """Features [N,C] from edge vectors [E,3] Å and atomic_numbers [N]; the charge is ignored."""
        # Empty slots hold vectors of 10⁶ Å: clamping avoids overflow and makes their gradients zero.
        distance = torch.linalg.vector_norm(vectors, dim=-1).clamp(max=self.cutoff)
        envelope = 0.5 * (torch.cos(distance * (math.pi / self.cutoff)) + 1)
        bumps = torch.exp(-0.5 * ((distance[:, None] - self.centres) / self.width) ** 2)
        x = self.elements(atomic_numbers)
        for make_filter, update in zip(self.filters, self.updates, strict=True):
            # The envelope comes after the filter, so that its bias also vanishes at the cutoff.
            messages = make_filter(bumps) * envelope[:, None] * x.index_select(0, edges.source)
            x = x + update(torch.zeros_like(x).index_add(0, edges.target, messages))
        return x


# At module level, so that all processes of a multi-GPU training run register it.
torchmdx.register_model("small_schnet", SmallSchNetConfig, SmallSchNet)


def main() -> None:
    print("checks of the model, with random weights:")
    check(torchmdx.Potential(SmallSchNetConfig(num_channels=16, max_z=8))).require()

    print("\ntraining on ethanol (GFN2-xTB):")
    shutil.rmtree(RUN, ignore_errors=True)
    status = train(make_config(CONFIG))
    if status:
        raise SystemExit(status)

    potential = torchmdx.load(RUN / "best.safetensors")
    print(f"\nloaded: {type(potential.network).__name__}, {potential.config}")
    atoms = ase.io.read(LABELLED)
    labels = atoms.get_forces()
    step = torchmdx.CapturedStep(potential, torchmdx.System.from_ase(atoms))
    error = 1000 * np.abs(step(atoms.positions).forces - labels).mean()
    print(f"mean force error {error:.0f} meV/Å, mean force {1000 * np.abs(labels).mean():.0f} meV/Å; "
          f"{step.mode}: {step.why}")  # fmt: skip
    atoms.calc = torchmdx.Calculator(potential)  # also evaluates with captured steps
    before = atoms.get_total_energy()
    VelocityVerlet(atoms, 0.5 * units.fs).run(200)
    print(f"0.1 ps of dynamics: the total energy drifts by {1000 * (atoms.get_total_energy() - before):.2f} meV")


if __name__ == "__main__":
    main()
