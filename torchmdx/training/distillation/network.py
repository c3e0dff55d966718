"""The network of a fast model: its cutoff by the structures, its size by what a step costs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.registry import prior_to_dict
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.structures.system import Batch, System
from torchmdx.training.config import ModelSection
from torchmdx.training.distillation.frames import seconds_of_a_step
from torchmdx.training.distillation.settings import DistillSettings

# Layers and channels, the most accurate first: the first one is taken whose step costs at most MOST_COST of the
# potential's, else the cheapest. With four inner steps that share makes an outer step twice as long as one of the
# potential alone.
CANDIDATES = ((1, 64), (1, 32), (0, 32))
MOST_COST = 0.25
# Å, and in units of the distance to the nearest neighbour: bonds, angles, and the second shell of most crystals.
LEAST_CUTOFF, SHELLS = 3.5, 1.7
NEAREST_SHARE = 90  # percentile over atoms
LEAST_MAX_Z = 20
STILL = 1e-4  # fs: a timestep that moves nothing
SECONDS = 0.5  # of each measurement


@dataclass(frozen=True)
class Cost:
    """A network that was measured: layers, channels, ms of a step, and that relative to the potential's."""

    layers: int
    channels: int
    milliseconds: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.layers}x{self.channels}: {self.milliseconds:.3g} ms, {self.ratio:.2f}"


def cutoff_of(potential: Potential | Ensemble, systems: Sequence[System]) -> float:
    """Å: 3.5 or 1.7 times the distance to the nearest neighbour, at most the cutoff of the potential's network."""
    most = max(float(member.config.cutoff) for member in members_of(potential))
    found = [LEAST_CUTOFF]
    for system in systems:
        nearest = nearest_neighbours(system, most)
        if len(nearest):
            found.append(SHELLS * float(np.percentile(nearest, NEAREST_SHARE)))
    return min(most, round(max(found), 1))


def nearest_neighbours(system: System, cutoff: float) -> np.ndarray:
    """The distance of each atom to its nearest neighbour, of those that have one within the cutoff, Å."""
    batch = Batch.of(system).to("cpu", torch.float64)
    edges = EdgeSearch(cutoff).allocate(batch).trimmed()
    lengths = torch.linalg.vector_norm(edges.vectors(batch.positions, batch.cell, batch.system_index), dim=-1)
    nearest = torch.full((system.num_atoms,), torch.inf, dtype=torch.float64)
    nearest.scatter_reduce_(0, edges.target.long(), lengths, "amin")
    return nearest[nearest.isfinite()].numpy()


def kept_priors(potential: Potential | Ensemble) -> list[PriorConfig]:
    """The priors that a fast model keeps: the repulsion of nuclei.

    It is as stiff as bonds, short, exact and cheap, and it keeps atoms apart where no frame was. Coulomb and
    dispersion energies are left out. What of them is stiff is short, and the network learns it, because it is trained
    on the forces of the whole potential; what is long is smooth, and belongs to the difference of the two models.
    """
    members = members_of(potential)
    return [
        prior
        for prior in members[0].prior_configs
        if isinstance(prior, ZBLConfig) and all(prior in member.prior_configs for member in members)
    ]


def section(
    potential: Potential | Ensemble, systems: Sequence[System], layers: int, channels: int, cutoff: float
) -> ModelSection:
    """The configuration of a fast model."""
    largest = max(int(system.atomic_numbers.max()) for system in systems)
    return ModelSection(
        num_layers=layers,
        num_channels=channels,
        cutoff=cutoff,
        max_z=max(LEAST_MAX_Z, largest),
        priors=[prior_to_dict(prior) for prior in kept_priors(potential)],
    )


def seconds_of(potential: Potential | Ensemble, systems: Sequence[System]) -> float:
    """Of a step of dynamics in which nothing moves."""
    dynamics = Dynamics(potential, list(systems), integrator="verlet", timestep=STILL, temperature=1.0)
    return seconds_of_a_step(dynamics, SECONDS)


def untrained(model: ModelSection, potential: Potential | Ensemble) -> Potential:
    """A fast model with random weights, in the precision and on the device of the potential."""
    found = Potential(model.network(), model.prior_configs())
    found.scale.fill_(1e-3)
    return found.to(device=potential.device, dtype=potential.dtype).eval().requires_grad_(False)


def choose(
    potential: Potential | Ensemble, systems: Sequence[System], measured: Sequence[System], request: DistillSettings
) -> tuple[ModelSection, list[Cost]]:
    """The network, and the costs that decided its size; none if layers and channels are given.

    Args:
        systems: All structures.
        measured: Those whose steps are measured.
    """
    if request.start is not None:
        return started(request.start), []
    cutoff = request.cutoff or cutoff_of(potential, systems)
    candidates = [
        (
            layers if request.layers is None else request.layers,
            channels if request.channels is None else request.channels,
        )
        for layers, channels in CANDIDATES
    ]
    costs: list[Cost] = []
    if request.layers is None or request.channels is None:
        whole = seconds_of(potential, measured)
        for layers, channels in dict.fromkeys(candidates):
            model = section(potential, systems, layers, channels, cutoff)
            seconds = seconds_of(untrained(model, potential), measured)
            costs.append(Cost(layers, channels, 1e3 * seconds, seconds / whole))
            if costs[-1].ratio <= MOST_COST:
                break
        best = best_of(costs)
        candidates = [(best.layers, best.channels)]
    return section(potential, systems, *candidates[0], cutoff), costs


def started(start: str) -> ModelSection:
    """The configuration of a fast model to start from. Raises ValueError for another kind of network."""
    found = load_one(start)
    if not isinstance(found.config, TensorNetConfig):
        raise ValueError(f"a fast model to start from must be a TensorNet, got {start!r} with {found.config!r}")
    priors = [prior_to_dict(prior) for prior in found.prior_configs]
    return ModelSection.model_validate({**asdict(found.config), "priors": priors})


def best_of(costs: Sequence[Cost]) -> Cost:
    """The first one that is cheap enough, else the cheapest."""
    return next((cost for cost in costs if cost.ratio <= MOST_COST), min(costs, key=lambda cost: cost.ratio))
