"""The state of a run in the memory of a GPU, and the launches that move it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.dynamics.device_restraints import DeviceRestraints
from torchmdx.dynamics.kernels import cell as cells
from torchmdx.dynamics.kernels import motion as kernels
from torchmdx.dynamics.motion import Motion
from torchmdx.step.buffer_storage import BufferStorage
from torchmdx.step.whole_step import Moving
from torchmdx.structures.units import BAR, FORCE_TO_ACCELERATION

if TYPE_CHECKING:
    from torchmdx.dynamics.device_blocks import DeviceBlocks

Floats = NDArray[np.float64]

BLOCK = 128
MOST_BLOCK = 1024
NUM_CONTROL = 2  # step, halted


class DeviceState:
    """Everything that a step of a run reads and writes, besides the buffers of the captured step.

    All that a snapshot needs is one block, so that it takes a single copy: control (step, halted), energy [S],
    restraint energy [S], virial [S], spread or uncertainty of the energy [S] and the largest of an atom [S], cell
    [S,3,3], positions, velocities and forces [N,3], and with multiple time steps those of the fast potential [N,3].
    """

    def __init__(self, motion: Motion, device: torch.device) -> None:
        particles = motion.particles
        self.num_atoms, self.num_systems = len(particles.system), particles.num_systems
        num_vectors = 3 if motion.multiple_steps is None else 4
        self.sizes = (NUM_CONTROL, *[self.num_systems] * 5, 9 * self.num_systems, *[3 * self.num_atoms] * num_vectors)
        self.block = torch.zeros(sum(self.sizes), dtype=torch.float64, device=device)
        self.control, self.energy, self.restraint_energy, self.virial, *others = self.parts(self.block)
        self.energy_doubt, self.largest_doubt, self.cell, *vectors = others
        self.positions, self.velocities, self.forces, *fast = vectors
        self.fast_forces = fast[0] if fast else self.forces
        self.faster = torch.zeros_like(self.velocities)

        def kept(array: NDArray[Any]) -> Tensor:
            return torch.as_tensor(array, device=device).contiguous()

        self.inverse_masses = kept(particles.inverse_masses())
        self.masses = kept(np.where(particles.mobile, particles.masses, 0.0))
        self.counted = kept(particles.counted.astype(np.float64))
        self.held = kept(particles.held_inverse_masses())
        self.system, self.place, self.starts = kept(particles.system), kept(particles.place), kept(particles.starts)
        self.first = kept(motion.first_counted())
        self.seeds = kept(motion.seeds)
        self.constants = kept(
            np.array([motion.timestep, motion.half_kick, motion.kept, (1 - motion.kept**2) ** 0.5], dtype=np.float64)
        )
        self.thermal = kept(motion.thermal())
        barostat = motion.barostat
        self.barostat = None
        if barostat is not None:
            mobility = barostat.mobility(motion.inner * motion.timestep)
            constants = (mobility, barostat.pressure * BAR, FORCE_TO_ACCELERATION)
            self.barostat = kept(np.array((*constants, motion.thermal_kick), dtype=np.float64))
        self.ratio, self.scale, self.no_virial = torch.zeros(3, self.num_systems, dtype=torch.float64, device=device)
        terms = motion.restraints
        self.restraints = None if terms is None else DeviceRestraints(terms, self.num_atoms, device)
        most = int(np.diff(particles.starts).max())
        self.rescale_block = min(MOST_BLOCK, max(32, triton.next_power_of_2(most)))
        self.block_size, self.atom_blocks = BLOCK, (triton.cdiv(self.num_atoms, BLOCK),)
        self.one_launch = motion.integrator.one_launch
        self.integration = motion.integrator.on_device(self)

    def parts(self, block: Tensor) -> tuple[Tensor, ...]:
        """Views of a block: control [2] int64, energies, virials and doubts [S], cell [S,3,3], those of [N,3]."""
        control, *parts = block.split(self.sizes)
        per_structure, cell, vectors = parts[:5], parts[5], (part.view(-1, 3) for part in parts[6:])
        return control.view(torch.int64), *per_structure, cell.view(-1, 3, 3), *vectors

    def moving(self, steps: int) -> Moving | None:
        """Steps for a kernel that moves the atoms itself; None with what that kernel lacks.

        That is restraints, a barostat, and integrators other than its own.
        """
        if self.restraints is not None or self.barostat is not None or self.one_launch is None:
            return None
        tensors = {
            "state_positions": self.positions,
            "state_velocities": self.velocities,
            "state_forces": self.forces,
            "state_energy": self.energy,
            "state_doubt": self.energy_doubt,
            "state_largest": self.largest_doubt,
            "inverse_masses": self.inverse_masses,
            "masses": self.masses,
            "counted": self.counted,
            "held": self.held,
            "thermal": self.thermal,
            "motion": self.constants,
            "seeds": self.seeds,
            "place": self.place,
            "first_counted": self.first,
            "control": self.control,
        }
        return Moving(tensors, steps, self.one_launch)

    def launch_advance(self, buffers: BufferStorage) -> None:
        """Writes the trial positions, and cells if they change, of the next step to the inputs of the captured step."""
        if self.barostat is not None:
            self.launch_cell(buffers, self.velocities, self.forces)
        self.integration.launch_move(buffers.inputs["positions"])

    def launch_cell(self, buffers: BufferStorage, velocities: Tensor, forces: Tensor) -> None:
        """Scales and trial cells, with the kinetic energies of these velocities after half a kick of the forces."""
        cells.rescale_cell[(self.num_systems,)](
            velocities, forces, self.masses, self.inverse_masses, self.held, self.starts, self.seeds,
            self.thermal, self.cell, self.virial, self.barostat, buffers.inputs["cell"], self.ratio, self.scale,
            self.control, BLOCK=self.rescale_block, num_warps=4,
        )  # fmt: skip

    def launch_complete(self, buffers: BufferStorage) -> None:
        """Commits the step whose evaluation is in the outputs of the captured step, or halts."""
        self.launch_restraints(buffers)
        self.launch_commit(buffers)
        self.integration.launch_complete()

    def launch_restraints(self, buffers: BufferStorage) -> None:
        """Adds the forces of restraints to the outputs of the captured step."""
        if self.restraints is not None:
            self.restraints.launch(buffers)

    def launch_commit(self, buffers: BufferStorage, blocks: DeviceBlocks | None = None) -> None:
        """Commits what has been evaluated, or halts. blocks: of inner steps, which then have the thermostat."""
        out: Any = buffers.outputs
        added = self.restraint_energy if self.restraints is None else self.restraints.energy
        # Without blocks the kernel does not read these.
        faster, quick, verdict, inner = self.faster, self.forces, self.control, 0
        if blocks is not None:
            faster, quick, verdict = blocks.quick.velocities, blocks.quick.forces, blocks.verdict
            inner = blocks.count
        kernels.complete[(triton.cdiv(max(self.num_atoms, self.num_systems), BLOCK),)](
            self.positions, self.velocities, self.forces, self.energy, self.restraint_energy,
            buffers.inputs["positions"], faster, out["forces"], out["energy"], added, self.fast_forces, quick, verdict,
            self.inverse_masses, self.constants, out["flags"], self.control, self.num_atoms, self.num_systems,
            INNER=inner, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        if self.barostat is not None:
            inner_virial = self.no_virial if self.restraints is None else self.restraints.virial
            cells.commit_cell[(triton.cdiv(self.num_systems, BLOCK),)](
                self.cell, self.virial, buffers.inputs["cell"], out["stress"], inner_virial, self.control,
                self.num_systems, BLOCK=BLOCK, num_warps=4,
            )  # fmt: skip
        if buffers.doubts is not None:
            of_systems, of_atoms = buffers.doubts
            kernels.commit_spread[(self.num_systems,)](
                self.energy_doubt, self.largest_doubt, out[of_systems], out[of_atoms], self.starts,
                self.control, BLOCK=self.rescale_block, num_warps=4,
            )  # fmt: skip
