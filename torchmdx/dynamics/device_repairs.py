"""Halted runs on a GPU: what is repaired, so that the run continues from the step before, and what is raised."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.dynamics.barostat import CellError, volumes
from torchmdx.dynamics.device_blocks import DeviceBlocks
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.frame import frame_of
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import disagreement, of_fast_potential, worst_atom
from torchmdx.dynamics.replays import Replays
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.step.audit import require_finite
from torchmdx.step.buffer_storage import FAR, NEEDED, NOT_FINITE, OVERFLOW
from torchmdx.step.captured_step import MOST_ROUNDS, CapturedStep
from torchmdx.step.change import gave_up, grow, refresh, settle
from torchmdx.step.device_memory import memory_explained
from torchmdx.step.results import NonFiniteError, SpreadError, StepResult
from torchmdx.step.spread_limit import at_step, require_agreement

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


class DelayedFlag:
    """A flag on a device, read by the host one read late, so that the GPU always has work queued.

    Args:
        flag: A number; any but 0 means that it is set.
    """

    def __init__(self, flag: Tensor) -> None:
        self.flag, self.on_gpu = flag, flag.device.type == "cuda"
        self.copies = deque(torch.zeros(2, dtype=flag.dtype, pin_memory=self.on_gpu))
        self.event: torch.cuda.Event | None = None

    def at_last_read(self) -> bool:
        """Queues a read, and returns whether the flag was set at the read before it; False at the first one."""
        before, done = self.copies[0], self.event
        self.copies.rotate()
        self.copies[0].copy_(self.flag, non_blocking=self.on_gpu)
        if self.on_gpu:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(self.flag.device))
        if done is not None:
            done.synchronize()
        return bool(before)


class Repairs:
    """Looks at a run that has halted. rounds: repairs in turn. frames: of the captured steps.

    Args:
        steps: Of the potential, and with multiple time steps of the fast one.
    """

    def __init__(
        self,
        steps: list[CapturedStep],
        state: DeviceState,
        blocks: DeviceBlocks | None,
        replays: Replays,
        motion: Motion,
    ) -> None:
        self.steps, self.step, self.device = steps, steps[0], steps[0].device
        self.state, self.blocks, self.replays, self.motion = state, blocks, replays, motion
        self.rounds = self.num_small_blocks = 0
        self._small_end: int | None = None  # of small steps that have begun
        self.frames: list[dict[str, NDArray[np.generic]]] = []

    def _reached(self) -> int:
        return int(self.state.control[0])

    def resume(self) -> None:
        """If the run has halted, repairs the cause, or raises it; settles what an interruption left."""
        with memory_explained(self.step.batch, self.device):
            if any(step.unsettled for step in self.steps):
                self.replays.drop()
                for step in self.steps:
                    settle(step, "device")
            if self._small_end is not None:
                if self._small_end == self._reached():
                    self._end_small_steps()
                self._small_end = None
            if not self.halted():
                return
            if not self.difference_is_small():  # no inner step counts
                self.rounds = 0
                self.go_on()
                self.require_first_agreement()
                self._take_small_steps()
                return
            self._require_steady()
            inner_bad = self.blocks is not None and int(self.blocks.verdict[0]) == 1
            step = self.steps[1 if inner_bad else 0]
            flags = step.buffers.outputs["flags"].cpu().numpy()
            self.rounds += 1
            if self.rounds > MOST_ROUNDS:
                raise RuntimeError(f"step {self._reached() + 1} failed {MOST_ROUNDS} times: {flags.tolist()}")
            if not self._repaired(step, flags):
                self.rounds = 0
                self.go_on()  # the next run tries that step again
                self._raise(step, flags)
                if self.blocks is not None:
                    self._take_small_steps()
            self.go_on()

    def go_on(self) -> None:
        """Lets the run continue; what halted it stays known until then, even if a repair fails."""
        self.state.control[1] = 0
        if self.blocks is not None:
            self.blocks.verdict.zero_()
        self._small_end = None

    def _require_steady(self) -> None:
        """Raises CellError if the volumes change too fast."""
        if (barostat := self.motion.barostat) is not None:
            try:
                barostat.require_steady(volumes(self.state.cell.cpu().numpy()), self.state.ratio.cpu().numpy())
            except CellError:
                self.go_on()  # the next run tries that step again
                raise

    def _repaired(self, step: CapturedStep, flags: NDArray[np.int64]) -> bool:
        """Whether the cause of a halt has been removed: of flags of an evaluation of this step."""
        if flags[FAR] and not flags[NOT_FINITE]:
            self.choose_frame(step, step.buffers.inputs["positions"])
        elif flags[OVERFLOW]:
            log.info("step %d: a list does not fit", self._reached() + 1)
            self.replays.drop()  # before the buffers that they use are replaced
            grow(step, int(flags[NEEDED]))
        elif flags[NOT_FINITE] and gave_up(step):
            self.replays.drop()
            settle(step, "device")
        else:
            return False
        return True

    def _raise(self, step: CapturedStep, flags: NDArray[np.int64]) -> None:
        """The error of flags that cannot be repaired, or of potentials that disagree, unless small steps may follow."""
        if flags[NOT_FINITE] and self.motion.restraints is not None:
            self.motion.restraints.require_gradients(step.buffers.inputs["positions"].cpu().numpy())
        number = self._reached() + self.motion.inner
        if step is not self.step and self.blocks is not None:
            number = int(self.blocks.quick.control[0]) + 1
        try:
            require_finite(flags, number, step.search.edges, step.buffers, step.ordered)
        except NonFiniteError as error:
            raise (error if step is self.step else of_fast_potential(error)) from None
        self._require_agreement(flags)
        if self.blocks is not None:
            found = (self.step.buffers.outputs["forces"] - self.blocks.quick.forces).cpu().numpy()
            self._disagree(number, found)

    def require_first_agreement(self) -> None:
        """Raises DisagreementError if the potentials disagree at the first state, unless small steps may follow."""
        if not self.difference_is_small():
            self._disagree(self._reached(), self._difference())

    def difference_is_small(self) -> bool:
        """Whether the potentials agree at the state."""
        return self.blocks is None or worst_atom(self._difference(), self.blocks.limits_on_host)[1] <= 1

    def _difference(self) -> Floats:
        found: Floats = (self.state.forces - self.state.fast_forces).cpu().numpy()
        return found

    def _disagree(self, number: int, found: Floats) -> None:
        """The error of a step whose forces differ by more than is allowed; a warning if small steps may follow."""
        assert self.blocks is not None
        assert self.motion.multiple_steps is not None
        error = disagreement(number, found, self.blocks.limits_on_host, self.motion.particles.starts)
        if not self.motion.multiple_steps.small_steps:
            raise error
        log.warning("%s", error)

    def _take_small_steps(self) -> None:
        """Replaces the steps at which the potentials disagree by such with the full potential alone."""
        assert self.blocks is not None
        first, last = self._reached() + 1, self._reached() + self.motion.inner
        log.warning("steps %d to %d use the full potential alone", first, last)
        for _ in range(MOST_ROUNDS):
            self.state.control[1] = 0
            self.step.unsettled, self._small_end = True, last
            run_compiled(self.blocks.launch_small, self.device)
            self.step.unsettled = False
            self.blocks.verdict.zero_()  # flags are those of the full potential
            if not self.halted():
                self._end_small_steps()
                return
            flags = self.step.buffers.outputs["flags"].cpu().numpy()
            if not self._repaired(self.step, flags):
                self.go_on()
                self._require_steady()
                require_finite(flags, last, self.step.search.edges, self.step.buffers, self.step.ordered)
                self._require_agreement(flags)
        raise RuntimeError(f"step {first} failed {MOST_ROUNDS} times")

    def _end_small_steps(self) -> None:
        """Takes forces of the fast potential, which small steps have not evaluated."""
        assert self.blocks is not None
        self.blocks.set_fast_forces()
        self.num_small_blocks += 1
        self._small_end = None

    def evaluation(self, number: int, positions: Tensor, cell: Tensor) -> StepResult:
        """The result of the potential, which stays in the buffers. Raises SpreadError, with the step."""
        try:
            return self.step(positions, cell)
        except SpreadError as error:
            raise at_step(error, number, self.motion.particles.starts) from None

    def _require_agreement(self, flags: NDArray[np.int64]) -> None:
        """Raises SpreadError, with the step and the forces of the potential alone, if a step has halted for it."""
        try:
            require_agreement(flags, self.step.batch, self.step.buffers)
        except SpreadError as error:
            if error.frame is not None and self.motion.restraints is not None:
                _, added, _ = self.motion.restraints.evaluate(self.step.buffers.inputs["positions"].cpu().numpy())
                own = self.motion.particles.system == error.structure
                error.frame = replace(error.frame, forces=error.frame.forces - added[own])
            raise at_step(error, self._reached() + self.motion.inner, self.motion.particles.starts) from None

    def halted(self) -> bool:
        return bool(self.state.control[1])

    def choose_frame(self, step: CapturedStep, positions: Tensor) -> None:
        inputs = step.buffers.inputs["positions"]
        if positions is not inputs:
            inputs.copy_(positions)
        refresh(step, "device")
        self.find_frames()

    def find_frames(self) -> None:
        """Takes those that the captured steps use now."""
        self.frames = [frame_of(step) for step in self.steps]
