"""The replicas of a round of exploration, and the batches in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.restraints import Restraint, restraint_of
from torchmdx.learning.sections import ExploreSection
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.structures.system import System
from torchmdx.training.distillation.frames import BATCH_ATOMS, ShortRun, batches

PART = "explore"  # all replicas are of one part
LARGEST_SEED = 2**62


@dataclass(frozen=True, kw_only=True)
class Replica(ShortRun):
    """One trajectory: its structure, temperature K and seed; pressure bar, None at constant volume.

    Attributes:
        copy: Its number among the replicas of its structure, temperature and pressure.
    """

    pressure: float | None = None
    copy: int = 0

    @property
    def conditions(self) -> str:
        """As text."""
        return f"{self.temperature:g} K" + (f", {self.pressure:g} bar" if self.pressure is not None else "")


def replicas_of(explore: ExploreSection, num_structures: int, seed: int, round_number: int) -> list[Replica]:
    """All replicas of a round. seed: of the run."""
    rng = np.random.default_rng([seed, 2, round_number])
    return [
        Replica(structure, temperature, PART, int(rng.integers(LARGEST_SEED)), pressure=pressure, copy=copy)
        for structure in range(num_structures)
        for temperature in explore.temperatures
        for pressure in _pressures(explore)
        for copy in range(explore.replicas)
    ]


def batches_of(
    explore: ExploreSection, systems: Sequence[System], replicas: Sequence[Replica], device: str
) -> list[list[Replica]]:
    """Replicas that run at once: at one pressure, and alike in periodic directions."""
    most = explore.batch_atoms or BATCH_ATOMS[device]
    found = []
    for pressure in _pressures(explore):
        found += batches(systems, [one for one in replicas if one.pressure == pressure], most)
    return found


def _pressures(explore: ExploreSection) -> list[float | None]:
    return [*explore.pressures] or [None]


def require_periodic(explore: ExploreSection, systems: Sequence[System], names: Sequence[str]) -> None:
    """Raises ValueError for pressures and a structure whose cell cannot change."""
    for system, name in zip(systems, names, strict=True):
        if explore.pressures and not bool(system.pbc.all()):
            raise ValueError(
                f"explore.pressures need structures that are periodic in all directions, got {name}, which is not"
            )


def dynamics_of(
    explore: ExploreSection, potential: Potential | Ensemble, systems: Sequence[System], batch: Sequence[Replica]
) -> Dynamics:
    """The dynamics of a batch."""
    pressure = batch[0].pressure
    return Dynamics(
        potential,
        [systems[one.structure] for one in batch],
        integrator=Langevin(friction=explore.friction),
        timestep=explore.timestep,
        temperature=[one.temperature for one in batch],
        seed=[one.seed for one in batch],
        barostat=None if pressure is None else CellRescaling(pressure=pressure),
        restraints=_restraints(explore, systems, batch),
        uncertainty=not isinstance(potential, Ensemble) and potential.uncertainty is not None,
    )


def _restraints(explore: ExploreSection, systems: Sequence[System], batch: Sequence[Replica]) -> list[Restraint]:
    """The biases of a batch, with the values of each replica; of other structures the stiffness is 0."""
    found = []
    for number, table in enumerate(explore.restraints):
        where = f"explore.restraints[{number}]"
        chosen = table.get("structures", range(len(systems)))
        given: dict[str, Any] = {name: value for name, value in table.items() if name != "structures"}
        held = [one.structure in chosen for one in batch]
        if not any(held):
            continue
        given["stiffness"] = [
            _of(table["stiffness"], one) if has else 0.0 for one, has in zip(batch, held, strict=True)
        ]
        if given["kind"] != "position":
            given["reference"] = [_of(table["reference"], one) for one in batch]
        found.append(restraint_of(given, where))
    return found


def _of(value: Any, replica: Replica) -> float:
    return float(value[replica.copy] if isinstance(value, list) else value)
