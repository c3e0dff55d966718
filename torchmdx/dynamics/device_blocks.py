"""Multiple time steps on a GPU: the inner steps with the fast potential, between two kicks of the difference.

The inner steps are those of another `DeviceState`, so that the state of the run changes only when all of them, and the
evaluation of the full potential after them, are good.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
from torch import Tensor

from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.kernels import multiple_steps as kernels
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import of_fast_potential
from torchmdx.step.buffer_storage import BufferStorage
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import NonFiniteError


class DeviceBlocks:
    """Launches `inner` steps at once.

    Attributes:
        verdict ([1]): 1 if an inner step was bad, 2 if the potentials disagree; the host sets it back to 0.
    """

    def __init__(self, state: DeviceState, motion: Motion, step: CapturedStep, fast: CapturedStep) -> None:
        self.state, self.step, self.fast, self.count = state, step, fast, motion.inner
        own = replace(motion, barostat=None, restraints=None, multiple_steps=None)
        self.quick = DeviceState(own, step.device)
        self.quick.restraints, self.quick.scale, self.quick.ratio = state.restraints, state.scale, state.ratio
        self.verdict = torch.zeros(1, dtype=torch.int64, device=step.device)
        self.limits = torch.zeros(state.num_atoms, dtype=torch.float64, device=step.device)
        self.kicked = motion.thermal_kick > 0
        self.set_motion(motion)

    def set_motion(self, motion: Motion) -> None:
        assert motion.multiple_steps is not None
        self.limits_on_host = motion.multiple_steps.limits(motion)
        self.limits.copy_(torch.as_tensor(self.limits_on_host))

    def launch(self) -> None:
        """The steps up to the next evaluation of the full potential, and whether they are committed."""
        state, quick, buffers, fast = self.state, self.quick, self.step.buffers, self.fast
        self._begin()
        if state.barostat is not None:
            of_kick = quick if self.kicked else state
            self._scale(of_kick.velocities, of_kick.forces)
        moving = None if state.barostat is not None else quick.moving(self.count)
        if moving is None or not fast._launch_moving(moving):
            for number in range(self.count):
                self._move(fast.buffers, scaled=number == 0)
                fast._launch("steps")
                quick.launch_complete(fast.buffers)
        kernels.hand_over[(triton.cdiv(3 * state.num_atoms, state.block_size),)](
            quick.positions, quick.control, buffers.inputs["positions"], self.verdict, state.control, state.num_atoms,
            BLOCK=state.block_size, num_warps=4,
        )  # fmt: skip
        self.step._launch("steps")
        state.launch_restraints(buffers)
        kernels.compare[state.atom_blocks](
            buffers.outputs["forces"], quick.forces, self.limits, self.verdict, state.control, state.num_atoms,
            BLOCK=state.block_size, num_warps=4,
        )  # fmt: skip
        state.launch_commit(buffers, self)

    def launch_small(self) -> None:
        """The same steps with the full potential alone; the state is committed without forces of the fast one."""
        state, quick, buffers = self.state, self.quick, self.step.buffers
        self._begin()
        if state.barostat is not None:
            self._scale(state.velocities, state.forces)
        quick.velocities.copy_(state.velocities)
        quick.forces.copy_(state.forces)
        self.verdict.zero_()
        for number in range(self.count):
            self._move(buffers, scaled=number == 0)
            self.step._launch("steps")
            quick.launch_complete(buffers)
        self.verdict.copy_(quick.control[1:])
        state.launch_commit(buffers, self)  # without a kick, since the forces are equal

    def _begin(self) -> None:
        state, quick = self.state, self.quick
        quick.thermal = state.thermal  # which exchanges on the device replace
        kernels.begin[state.atom_blocks](
            state.positions, state.velocities, state.forces, state.fast_forces, quick.positions, quick.velocities,
            quick.forces, quick.control, state.inverse_masses, self.limits, self.verdict, state.constants,
            state.control, state.num_atoms, INNER=self.count, BLOCK=state.block_size, num_warps=4,
        )  # fmt: skip

    def _scale(self, velocities: Tensor, forces: Tensor) -> None:
        """Scales and trial cells of both potentials, with these velocities and the forces of the first half kick."""
        cell = self.step.buffers.inputs["cell"]
        self.state.launch_cell(self.step.buffers, velocities, forces)
        self.fast.buffers.inputs["cell"].copy_(cell)

    def _move(self, buffers: BufferStorage, *, scaled: bool) -> None:
        """Trial positions of an inner step. scaled: whether the barostat scales them."""
        self.quick.barostat = self.state.barostat if scaled else None
        self.quick.integration.launch_move(buffers.inputs["positions"])
        self.quick.barostat = None

    def set_fast_forces(self) -> None:
        """Takes forces of the fast potential at the state's positions, and of restraints. Raises NonFiniteError."""
        self.state.fast_forces.copy_(self.evaluated(self.state.positions, self.state.cell))

    def evaluated(self, positions: Tensor, cell: Tensor) -> Tensor:
        """Forces of the fast potential, and of restraints. Raises NonFiniteError."""
        try:
            self.fast(positions, cell)
        except NonFiniteError as error:
            raise of_fast_potential(error) from None
        forces: Tensor = self.fast.buffers.outputs["forces"]
        found = forces.clone()
        if self.state.restraints is not None:
            own = found
            self.state.restraints.launch(self.fast.buffers)
            found = forces.clone()
            forces.copy_(own)  # an audit compares them with those of the network
        return found
