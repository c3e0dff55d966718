"""FIRE (fast inertial relaxation engine) for many systems at once: one vectorized update on the device.

Each system has its own time step and mixing, as if it were relaxed alone (Bitzek et al., Phys. Rev. Lett. 97, 170201).
A cell moves through its strain: with n atoms, volume V, stress σ and pressure p, the coordinates q = n ε have the
generalized force -V (σ + p) / n, which is also compared with fmax. Atoms follow the strain, fixed ones too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.dynamics.relaxation.cell_space import ANY_STRAIN, CellSpace

# As in ASE.
START_DT, MOST_DT, MORE_DT, LESS_DT = 0.1, 1.0, 1.1, 0.5
START_MIXING, LESS_MIXING = 0.1, 0.99
DOWNHILL_FIRST = 5
MOST_STEP = 0.2  # Å, of an atom, or of the row of a cell's coordinates
MOST_STRAIN = 0.04  # of one step
# Limits of a relaxation, beyond which a structure is no longer the same.
MOST_TRAVEL = 20.0  # Å, of an atom, relative to the cell
MOST_VOLUME_RATIO = 5.0

OPTIMIZERS = ("lbfgs", "fire")
RUNNING, CONVERGED, OUT_OF_STEPS, NOT_FINITE, TOO_FAR, CELL_LOST, EMPTY = range(7)


@dataclass(frozen=True, kw_only=True)
class FireSettings:
    """fmax: eV/Å, and eV for the cell. steps: at most. cell: whether cells move. pressure: external, eV/Å³.

    Attributes:
        optimizer: "lbfgs" or "fire".
        space: How cells may move.
    """

    fmax: float = 0.01
    steps: int = 500
    cell: bool = False
    pressure: float = 0.0
    optimizer: str = "lbfgs"
    space: CellSpace = ANY_STRAIN

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if not 0 < self.fmax < math.inf:
            raise ValueError(f"fmax must be > 0 eV/Å, got {self.fmax}")
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if not math.isfinite(self.pressure):
            raise ValueError(f"pressure must be finite, got {self.pressure}")
        if self.pressure and not self.cell:
            raise ValueError(f"a pressure needs cell=True, got pressure {self.pressure} alone")
        if self.space and not self.cell:
            raise ValueError(f"limits on the cell need cell=True, got {self.space} alone")


class Fire:
    """The state of N atoms in S systems, in float64 buffers of fixed addresses, so that an update can be captured.

    Of each atom: positions, velocities, travel [N,3] and free [N,3] bool. Of each system: cell, cell_velocity [S,3,3],
    cell_space [S,9,9], the projector onto strains that are allowed; dt, mixing, downhill, steps, status, energy, fmax,
    start_volume, count [S]. system_index [N]; rows [S,M]: the atoms
    of each system, filled up with N.
    """

    RUNNING = RUNNING
    OF_ATOMS: tuple[str, ...] = ("positions", "velocities", "travel", "free")
    OF_SYSTEMS: tuple[str, ...] = (
        "cell", "cell_velocity", "dt", "mixing", "downhill", "steps", "status", "energy", "fmax", "start_volume",
        "count", "cell_space",
    )  # fmt: skip

    def __init__(
        self, num_atoms: int, num_systems: int, most_rows: int, device: torch.device, settings: FireSettings
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.settings, self.device = settings, device
        self.positions, self.velocities, self.travel = (zeros(num_atoms, 3) for _ in range(3))
        self.free = zeros(num_atoms, 3, dtype=torch.bool)
        self.system_index = zeros(num_atoms, dtype=torch.int64)
        self.rows = torch.full((num_systems, most_rows), num_atoms, dtype=torch.int64, device=device)
        self.cell, self.cell_velocity = zeros(num_systems, 3, 3), zeros(num_systems, 3, 3)
        self.dt, self.mixing, self.energy, self.fmax = (zeros(num_systems) for _ in range(4))
        self.start_volume, self.count = zeros(num_systems), zeros(num_systems)
        self.downhill, self.steps, self.status = (zeros(num_systems, dtype=torch.int64) for _ in range(3))
        self.cell_space = zeros(num_systems, 9, 9)
        self._eye = torch.eye(3, dtype=torch.float64, device=device)
        self._no_row = zeros(1, 3)

    def load(self, values: dict[str, Tensor]) -> None:
        """Copies values by name into the buffers."""
        for name, value in values.items():
            getattr(self, name).copy_(value)

    def saved(self) -> dict[str, Tensor]:
        """Copies of what an update changes, for `load`."""
        return {name: getattr(self, name).clone() for name in (*self.OF_ATOMS, *self.OF_SYSTEMS)}

    def advance(self, energy: Tensor, forces: Tensor, stress: Tensor | None) -> None:
        """Judges the results [S], [N,3], [S,3,3] at the current positions, and moves the systems that continue."""
        forces = torch.where(self.free, forces, 0.0)
        pull = self._pull(stress)
        self._judge(energy, forces, pull)
        step, strain, velocities, cell_velocity = self._propose(forces, pull)
        limit = self._limit()
        longest = torch.maximum(self._longest(step), self._longest_strain(strain))
        factor = limit / torch.maximum(longest, limit)
        step, strain = step * factor[self.system_index, None], strain * factor[:, None, None]
        self._move(step, strain, velocities, cell_velocity)

    def _limit(self) -> Tensor:
        """The longest step [S], Å, of an atom, or of the row of a cell's coordinates."""
        return torch.full_like(self.dt, MOST_STEP)

    def _propose(self, forces: Tensor, pull: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Displacements [N,3] and strains [S,3,3] before any limit, and the new velocities."""
        keep, push = self._mix(forces, pull)
        index = self.system_index
        velocities = keep[index, None] * self.velocities + push[index, None] * forces
        cell_velocity = keep[:, None, None] * self.cell_velocity + push[:, None, None] * pull
        strain = self.dt[:, None, None] * cell_velocity / self.count.clamp(min=1)[:, None, None]
        return self.dt[index, None] * velocities, strain, velocities, cell_velocity

    def _pull(self, stress: Tensor | None) -> Tensor:
        """The generalized forces [S,3,3] on cells, eV; zero for cells that do not move."""
        if stress is None or not self.settings.cell:
            return torch.zeros_like(self.cell)
        total = (stress + stress.transpose(1, 2)) / 2 + self.settings.pressure * self._eye
        allowed = (self.cell_space * total.reshape(-1, 1, 9)).sum(-1).reshape(total.shape)
        return -allowed * (volumes(self.cell) / self.count.clamp(min=1))[:, None, None]

    def _judge(self, energy: Tensor, forces: Tensor, pull: Tensor) -> None:
        """Sets energy, largest force and status of the systems that are running."""
        running = self.status == RUNNING
        fmax = torch.maximum(self._longest(forces), _longest_row(pull))
        status = torch.where(self.steps >= self.settings.steps, OUT_OF_STEPS, self.status)
        status = torch.where(fmax < self.settings.fmax, CONVERGED, status)
        status = torch.where(torch.isfinite(fmax) & torch.isfinite(energy), status, NOT_FINITE)
        self.energy.copy_(torch.where(running, energy, self.energy))
        self.fmax.copy_(torch.where(running, fmax, self.fmax))
        self.status.copy_(torch.where(running, status, self.status))

    def _mix(self, forces: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
        """Factors [S] of the old velocities and of the forces in the new ones; changes time steps and mixing."""
        power = self._dot(forces, self.velocities) + (pull * self.cell_velocity).sum((1, 2))
        speed = self._dot(self.velocities, self.velocities) + self.cell_velocity.square().sum((1, 2))
        force = self._dot(forces, forces) + pull.square().sum((1, 2))
        down, at_rest = power > 0, speed == 0
        mixed = self.mixing * (speed / force.clamp(min=1e-300)).sqrt()
        keep, push = torch.where(down, 1 - self.mixing, 0.0), torch.where(down, mixed, 0.0)
        moving = self.status == RUNNING
        faster, slower = moving & down & (self.downhill > DOWNHILL_FIRST), moving & ~down & ~at_rest
        dt = torch.where(faster, (self.dt * MORE_DT).clamp(max=MOST_DT), self.dt)
        mixing = torch.where(faster, self.mixing * LESS_MIXING, self.mixing)
        self.dt.copy_(torch.where(slower, dt * LESS_DT, dt))
        self.mixing.copy_(torch.where(slower, START_MIXING, mixing))
        self.downhill.copy_(torch.where(slower, 0, self.downhill + (moving & down)))
        return keep, push + self.dt

    def _move(self, step: Tensor, strain: Tensor, velocities: Tensor, cell_velocity: Tensor) -> None:
        """Moves the running systems, except those that would leave the limits, which end."""
        deformation = self._eye + strain
        if self.settings.space.constant_volume:  # the exponential, whose determinant is that of the trace
            square = _product(strain, strain)
            deformation = deformation + square / 2 + _product(square, strain) / 6 + _product(square, square) / 24
        cell = _product(self.cell, deformation)
        travel = self.travel + step
        ratio = volumes(cell) / self.start_volume.clamp(min=1e-300)
        lost = (self.start_volume > 0) & ((ratio > MOST_VOLUME_RATIO) | (ratio < 1 / MOST_VOLUME_RATIO))
        status = torch.where(lost, CELL_LOST, self.status)
        status = torch.where(self._longest(travel) > MOST_TRAVEL, TOO_FAR, status)
        self.status.copy_(torch.where(self.status == RUNNING, status, self.status))
        moves = self.status == RUNNING
        of_atoms, of_cells = moves[self.system_index, None], moves[:, None, None]
        followed = (self.positions[:, :, None] * deformation[self.system_index]).sum(1)
        self.positions.copy_(torch.where(of_atoms, followed + step, self.positions))
        self.velocities.copy_(torch.where(of_atoms, velocities, self.velocities))
        self.travel.copy_(torch.where(of_atoms, travel, self.travel))
        self.cell.copy_(torch.where(of_cells, cell, self.cell))
        self.cell_velocity.copy_(torch.where(of_cells, cell_velocity, self.cell_velocity))
        self.steps += moves

    # -- sums over the atoms of each system, in a fixed order so that results can be repeated -------------------------

    def _rows_of(self, values: Tensor) -> Tensor:
        return torch.cat([values, self._no_row])[self.rows]

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self._rows_of(a * b).sum((1, 2))

    def _longest(self, vectors: Tensor) -> Tensor:
        return _longest_row(self._rows_of(vectors))

    def _longest_strain(self, strain: Tensor) -> Tensor:
        """As lengths in Å, to be compared with MOST_STEP."""
        return _longest_row(strain) * torch.clamp(self.count, min=MOST_STEP / MOST_STRAIN)


def _longest_row(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1).amax(-1).sqrt()


def volumes(cell: Tensor) -> Tensor:
    """Volumes [S] of cells [S,3,3]."""
    return (cell[:, 0] * torch.linalg.cross(cell[:, 1], cell[:, 2])).sum(-1).abs()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Products of 3×3 matrices [S,3,3] without a library, which a capture would have to make room for."""
    return (a[:, :, :, None] * b[:, None, :, :]).sum(2)
