"""L-BFGS for many systems at once: one vectorized update on the device, with FIRE where it gets into trouble.

The inverse Hessian H of each system comes from its last m steps s and changes of gradient y, in compact form (Byrd,
Nocedal and Schnabel, Math. Program. 63, 129): with forces f, S = (s₁ … sₘ), Y = (y₁ … yₘ), R the upper triangle of SᵀY,
D its diagonal,

::

    α = R⁻¹ Sᵀf,   δ = R⁻ᵀ (D α + γ (YᵀY α - Yᵀf)),   H f = γ (f - Y α) + S δ,   γ = sₘ·yₘ / yₘ·yₘ

A new pair appends a column to R⁻¹, and the oldest leaves with the first row and column: no triangle has to be solved.
Cells move as in `fire`, with the coordinates n ε. No step is longer than the system's reach. A step uphill empties the
history and halves the reach; several of them, or no progress for long, hand the system to FIRE for some steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.dynamics.relaxation.fire import (
    MOST_STEP,
    START_DT,
    START_MIXING,
    Fire,
    FireSettings,
    volumes,
)

MEMORY = 20  # pairs; 30 take as many steps, 10 a tenth more, by benchmarks/relax.py
FIRST_STIFFNESS = 70.0  # eV/Å², of the first step, as in ASE
LEAST_REACH, MORE_REACH = 0.02, 1.1  # Å
UPHILL, UPHILL_PER_ATOM = 0.01, 1e-4  # eV: a step that raises the energy by more is uphill
MOST_UPHILL = 4
MOST_STEPS_WITHOUT_PROGRESS = 100
FIRE_STEPS = 60
LEAST_COSINE = 1e-6  # between a step and the change of the gradient along it


class Lbfgs(Fire):
    """The state of N atoms in S systems. In addition to that of `Fire`, for m pairs:

    Of each atom: last_forces, last_step [N,3], its part of S and Y: moves, turns [N,m,3]. Of each system: those of the
    cell, last_pull, last_strain [S,3,3], cell_moves, cell_turns [S,m,3,3]; inverse (R⁻¹), turn_products (YᵀY) [S,m,m],
    curvatures (D) [S,m]; last_enthalpy, least_fmax, reach, uphill, idle, fire_left [S].
    """

    OF_ATOMS = (*Fire.OF_ATOMS, "last_forces", "last_step", "moves", "turns")
    OF_SYSTEMS = (
        *Fire.OF_SYSTEMS, "last_pull", "last_strain", "cell_moves", "cell_turns", "inverse", "turn_products",
        "curvatures", "last_enthalpy", "least_fmax", "reach", "uphill", "idle", "fire_left",
    )  # fmt: skip

    def __init__(
        self, num_atoms: int, num_systems: int, most_rows: int, device: torch.device, settings: FireSettings
    ) -> None:
        super().__init__(num_atoms, num_systems, most_rows, device, settings)

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        m = MEMORY
        self.last_forces, self.last_step = zeros(num_atoms, 3), zeros(num_atoms, 3)
        self.moves, self.turns = zeros(num_atoms, m, 3), zeros(num_atoms, m, 3)
        self.last_pull, self.last_strain = zeros(num_systems, 3, 3), zeros(num_systems, 3, 3)
        self.cell_moves, self.cell_turns = zeros(num_systems, m, 3, 3), zeros(num_systems, m, 3, 3)
        self.inverse, self.turn_products = zeros(num_systems, m, m), zeros(num_systems, m, m)
        self.curvatures = zeros(num_systems, m)
        self.last_enthalpy, self.least_fmax, self.reach = (zeros(num_systems) for _ in range(3))
        self.uphill, self.idle, self.fire_left = (zeros(num_systems, dtype=torch.int64) for _ in range(3))

    def _propose(self, forces: Tensor, pull: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        slow = self._watch()
        self._learn(forces, pull)
        step, stretch = self._direction(forces, pull)
        # FIRE, whose velocities are zero in systems that it does not move.
        fire_step, fire_strain, velocities, cell_velocity = super()._propose(forces, pull)
        of_atoms, of_cells = slow[self.system_index, None], slow[:, None, None]
        strain = stretch / self.count.clamp(min=1)[:, None, None]
        return (
            torch.where(of_atoms, fire_step, step),
            torch.where(of_cells, fire_strain, strain),
            torch.where(of_atoms, velocities, 0.0),
            torch.where(of_cells, cell_velocity, 0.0),
        )

    def _limit(self) -> Tensor:
        return torch.where(self.fire_left > 0, MOST_STEP, self.reach)

    def _watch(self) -> Tensor:
        """Counts steps uphill and without progress; returns which systems [S] FIRE moves."""
        running, begun = self.status == self.RUNNING, self.steps > 0
        enthalpy = self.energy + self.settings.pressure * volumes(self.cell)
        allowed = (UPHILL_PER_ATOM * self.count).clamp(min=UPHILL)
        slow = self.fire_left > 0
        rose = running & begun & ~slow & (enthalpy - self.last_enthalpy > allowed)
        better = ~begun | (self.fmax < self.least_fmax)
        idle, uphill = torch.where(better, 0, self.idle + 1), self.uphill + rose
        fails = running & ~slow & ((uphill >= MOST_UPHILL) | (idle >= MOST_STEPS_WITHOUT_PROGRESS))
        reach = torch.where(rose, (self.reach / 2).clamp(min=LEAST_REACH), self.reach * MORE_REACH)
        self.reach.copy_(torch.where(begun, reach, MOST_STEP).clamp(max=MOST_STEP))
        self.least_fmax.copy_(torch.where(better, self.fmax, self.least_fmax))
        self.last_enthalpy.copy_(enthalpy)
        self.idle.copy_(torch.where(fails, 0, idle))
        self.uphill.copy_(torch.where(fails, 0, uphill))
        self.fire_left.copy_(torch.where(fails, FIRE_STEPS, (self.fire_left - slow.long()).clamp(min=0)))
        self._forget(rose | fails)
        self.dt.copy_(torch.where(fails, START_DT, self.dt))
        self.mixing.copy_(torch.where(fails, START_MIXING, self.mixing))
        self.downhill.copy_(torch.where(fails, 0, self.downhill))
        return self.fire_left > 0

    def _forget(self, which: Tensor) -> None:
        """Empties the history of systems [S]."""
        of_atoms = which[self.system_index, None, None]
        self.moves.copy_(torch.where(of_atoms, 0.0, self.moves))
        self.turns.copy_(torch.where(of_atoms, 0.0, self.turns))
        for values in (self.cell_moves, self.cell_turns, self.inverse, self.turn_products, self.curvatures):
            values.copy_(torch.where(which.view(-1, *[1] * (values.dim() - 1)), 0.0, values))

    def _learn(self, forces: Tensor, pull: Tensor) -> None:
        """Appends the last step and the change of the gradient along it, if the energy curves upwards there."""
        turn, cell_turn = self.last_forces - forces, self.last_pull - pull
        move, cell_move = self.last_step, self.last_strain
        along = self._dot(move, turn) + (cell_move * cell_turn).sum((1, 2))
        length = self._dot(move, move) + cell_move.square().sum((1, 2))
        change = self._dot(turn, turn) + cell_turn.square().sum((1, 2))
        good = (self.status == self.RUNNING) & (self.steps > 0) & (along > LEAST_COSINE * (length * change).sqrt())
        of_atoms, of_cells = good[self.system_index, None, None], good[:, None, None, None]
        self.moves.copy_(torch.where(of_atoms, _pushed(self.moves, move), self.moves))
        self.turns.copy_(torch.where(of_atoms, _pushed(self.turns, turn), self.turns))
        self.cell_moves.copy_(torch.where(of_cells, _pushed(self.cell_moves, cell_move), self.cell_moves))
        self.cell_turns.copy_(torch.where(of_cells, _pushed(self.cell_turns, cell_turn), self.cell_turns))
        column, products = self._products(turn, cell_turn)
        inverse = self.inverse[:, 1:, 1:]
        new = -(inverse * column[:, None, :-1]).sum(-1) / torch.where(good, along, 1.0)[:, None]
        last = torch.cat([torch.zeros_like(new), 1 / torch.where(good, along, 1.0)[:, None]], 1)
        inverse = torch.cat([torch.cat([inverse, new[:, :, None]], 2), last[:, None]], 1)
        squares = torch.cat([self.turn_products[:, 1:, 1:], products[:, :-1, None]], 2)
        squares = torch.cat([squares, products[:, None]], 1)
        which = good[:, None, None]
        self.inverse.copy_(torch.where(which, inverse, self.inverse))
        self.turn_products.copy_(torch.where(which, squares, self.turn_products))
        self.curvatures.copy_(torch.where(good[:, None], _pushed(self.curvatures, along), self.curvatures))
        self.last_forces.copy_(forces)
        self.last_pull.copy_(pull)

    def _products(self, vectors: Tensor, of_cells: Tensor) -> tuple[Tensor, Tensor]:
        """Sᵀv and Yᵀv [S,m] of one vector of each system: [N,3] of its atoms and [S,3,3] of its cell."""
        both = torch.cat([(self.moves * vectors[:, None]).sum(-1), (self.turns * vectors[:, None]).sum(-1)], 1)
        sums = torch.cat([both, both.new_zeros(1, 2 * MEMORY)])[self.rows].sum(1)
        moves = sums[:, :MEMORY] + (self.cell_moves * of_cells[:, None]).sum((2, 3))
        return moves, sums[:, MEMORY:] + (self.cell_turns * of_cells[:, None]).sum((2, 3))

    def _direction(self, forces: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
        """H f: displacements [N,3], Å, and those of the coordinates of cells [S,3,3]; downhill in any case."""
        along, turned = self._products(forces, pull)
        last = self.turn_products[:, -1, -1]
        scale = torch.where(last > 0, self.curvatures[:, -1] / last.clamp(min=1e-300), 1 / FIRST_STIFFNESS)
        alpha = (self.inverse * along[:, None]).sum(-1)
        rest = self.curvatures * alpha + scale[:, None] * ((self.turn_products * alpha[:, None]).sum(-1) - turned)
        delta, alpha = (self.inverse * rest[:, :, None]).sum(1), scale[:, None] * alpha
        index = self.system_index
        of_atoms = (self.moves * delta[index, :, None]).sum(1) - (self.turns * alpha[index, :, None]).sum(1)
        step = scale[index, None] * forces + of_atoms
        of_cells = (self.cell_moves * delta[:, :, None, None]).sum(1) - (self.cell_turns * alpha[:, :, None, None]).sum(
            1
        )
        stretch = scale[:, None, None] * pull + of_cells
        down = self._dot(step, forces) + (stretch * pull).sum((1, 2)) > 0
        self._forget(~down)
        plain = 1 / FIRST_STIFFNESS
        return (
            torch.where(down[index, None], step, plain * forces),
            torch.where(down[:, None, None], stretch, plain * pull),
        )

    def _move(self, step: Tensor, strain: Tensor, velocities: Tensor, cell_velocity: Tensor) -> None:
        super()._move(step, strain, velocities, cell_velocity)
        self.last_step.copy_(step)
        self.last_strain.copy_(strain * self.count[:, None, None])


def _pushed(history: Tensor, new: Tensor) -> Tensor:
    """[.,m,...] without the first, with `new` as the last."""
    return torch.cat([history[:, 1:], new[:, None]], 1)
