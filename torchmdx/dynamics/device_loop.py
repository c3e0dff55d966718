"""The loop of a run on a GPU: K steps of integrator and evaluation in one CUDA graph.

The host launches replays, and waits only for snapshots, while the GPU already works towards the next one. A step whose
evaluation is bad (overflow, atoms too far out, results that are not finite, an ensemble that disagrees) halts the run
on the device: what follows changes nothing. When the host sees it, it repairs the cause and the run continues from the
step before, or it raises the error that a captured step raises.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.dynamics.barostat import volumes
from torchmdx.dynamics.device_blocks import DeviceBlocks
from torchmdx.dynamics.device_exchange import DeviceExchange
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.frame import frame_of, set_frame
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import disagreement, of_fast_potential, worst_atom
from torchmdx.dynamics.replays import Replays
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.step.audit import require_finite
from torchmdx.step.buffer_storage import FAR, NEEDED, NOT_FINITE, OVERFLOW
from torchmdx.step.captured_step import MOST_ROUNDS, CapturedStep
from torchmdx.step.change import fall_back, gave_up, grow, refresh, settle
from torchmdx.step.device_memory import memory_explained
from torchmdx.step.results import NonFiniteError, SpreadError, StepResult
from torchmdx.step.spread_limit import at_step, require_agreement

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

# Steps between choices of the frame, in which atoms are wrapped and ordered.
REFRESH_EVERY = 2000
SLOTS = 2  # snapshots on their way: the GPU works towards one while the host handles the other


@dataclass(eq=False)
class _Pending:
    """A snapshot that the GPU has been asked for: the step it should have, and where it will be."""

    stop: int
    block: Tensor
    exchange: Tensor | None
    done: torch.cuda.Event | None
    frames: list[dict[str, NDArray[np.generic]]]


class DeviceLoop:
    """Positions, velocities and forces on the GPU, and their motion.

    Args:
        steps_per_replay: K.
        mode: "graph", "auto" or "eager"; with "auto" a graph that fails is replaced by launches.
        exchange: Attempted on the device, without the host.
        fast: The step of the fast potential, for multiple time steps.
    """

    def __init__(
        self,
        step: CapturedStep,
        motion: Motion,
        positions: Floats,
        velocities: Floats,
        cell: Floats,
        *,
        steps_per_replay: int,
        mode: str,
        exchange: TemperatureExchange | None = None,
        fast: CapturedStep | None = None,
    ) -> None:
        self.step, self.motion, self.device, self.num_small_blocks = step, motion, step.device, 0
        self.steps = [step, *([] if fast is None else [fast])]
        self.state = DeviceState(motion, self.device)
        self.blocks = None if fast is None else DeviceBlocks(self.state, motion, step, fast)
        self._slots: deque[Tensor] = deque()
        self._rounds = 0
        self.exchanges = exchange is not None
        self.exchange = None if exchange is None else DeviceExchange(exchange, self.state, motion.temperatures)
        size = max(1, steps_per_replay // motion.inner)
        self.replays = Replays(step, self.state, size, mode, self.exchange, self.blocks)
        self._first_evaluations(positions, velocities, cell)
        self._frames = [frame_of(each) for each in self.steps]
        # The frame is chosen, and exchanges are attempted, at the end of replays.
        self._refresh_every = math.lcm(REFRESH_EVERY, motion.inner)
        self._boundaries = (self._refresh_every, *(() if exchange is None else (exchange.every,)))
        self._require_agreement_of_potentials()

    def _first_evaluations(self, positions: Floats, velocities: Floats, cell: Floats) -> None:
        """Through the captured steps themselves, which makes room for the edges; then the audit of any capture."""
        step, motion = self.step, self.motion
        given = torch.as_tensor(positions, device=self.device), torch.as_tensor(cell, device=self.device)
        first = self._evaluation(0, *given)
        if self.replays.captured and (reason := step._judge("device")) is not None:
            self.replays.refuse(reason)
            fall_back(step, reason)
            first = self._evaluation(0, *given)
        added, pull, virial = np.zeros(len(cell)), np.zeros_like(positions), np.full(len(cell), np.nan)
        if motion.barostat is not None:
            stress = torch.as_tensor(first.stress).cpu().numpy()
            virial = -volumes(cell) * np.trace(stress, axis1=1, axis2=2)
        if motion.restraints is not None:
            added, pull, inner = motion.restraints.evaluate(positions)
            virial = virial + inner
        self._set(0, positions, velocities, first.forces, first.energy, added, virial, cell)
        self.state.forces += torch.as_tensor(pull, device=self.device)
        if self.blocks is not None:
            self.blocks.set_fast_forces()
            fast = self.blocks.fast
            if self.replays.captured and (reason := fast._judge("device")) is not None:
                self.replays.refuse(reason)
                fall_back(fast, reason)
                self.blocks.set_fast_forces()

    @property
    def why(self) -> str:
        return f"{self.replays.why}; {self.step.engine_why}: {self.step.engine.name}"

    @property
    def num_recoveries(self) -> int:
        return sum(step.num_recoveries for step in self.steps)

    def close(self) -> None:
        """Nothing to end."""

    @property
    def num_steps(self) -> int:
        return int(self.state.control[0])

    def set_motion(self, motion: Motion) -> None:
        """Takes other temperatures."""
        self.motion = motion
        self.state.thermal.copy_(torch.as_tensor(motion.thermal()))
        if self.blocks is not None:
            self.blocks.set_motion(motion)
        if self.exchange is not None:
            self.exchange.set(motion.temperatures)

    def snapshots(self, stops: Iterator[int], interrupted: Callable[[], bool] = lambda: False) -> Iterator[Snapshot]:
        """Integrates to each of the steps in turn, and yields the state there; the GPU is up to one stop ahead.

        Args:
            interrupted: Once it returns true, no further step is begun.
        """
        waiting: deque[int] = deque()
        pending: deque[_Pending] = deque()
        self._resume()
        if self.exchange is not None:
            self.exchange.launch()  # unless an interruption came between a step and its attempts, there are none
        planned = self.num_steps
        while True:
            if len(pending) < SLOTS:
                stop = None if interrupted() else waiting.popleft() if waiting else next(stops, None)
                if stop is not None:
                    self._launch_to(planned, stop)
                    pending.append(self._request(stop))
                    planned = stop
                    continue
            if not pending:
                return
            oldest = pending.popleft()
            found = self._receive(oldest)
            if found.step == oldest.stop:
                self._rounds = 0
                yield found
            else:
                waiting.extendleft(reversed([oldest.stop, *(item.stop for item in pending)]))
                self._slots.extend(item.block for item in pending)
                pending.clear()
                self._resume()
                planned = self.num_steps

    def snapshot(self) -> Snapshot:
        return self._receive(self._request(self.num_steps))

    def restore(self, given: Snapshot) -> None:
        positions = torch.as_tensor(given.positions, device=self.device)
        cell = torch.as_tensor(given.cell, device=self.device)
        self._evaluation(given.step, positions, cell)  # raises before anything has changed
        energies = (given.energy, given.restraint_energy, given.virial)
        self._set(given.step, given.positions, given.velocities, given.forces, *energies, given.cell)
        if self.blocks is not None:
            self.blocks.set_fast_forces()
            if given.fast_forces is not None and given.fast_frame is not None:
                self.state.fast_forces.copy_(torch.as_tensor(given.fast_forces))
                set_frame(self.blocks.fast, given.fast_frame)
        set_frame(self.step, given.frame)
        self._frames, self._rounds = [frame_of(step) for step in self.steps], 0

    def set_velocities(self, velocities: Floats) -> None:
        self.state.velocities.copy_(torch.as_tensor(velocities))

    # -- launches ----------------------------------------------------------------------------------------------------

    def _launch_to(self, planned: int, stop: int) -> None:
        """Launches the steps from `planned` to `stop`, unless the run has halted before the frame is to be chosen."""
        while planned < stop:
            boundary = min(stop, *((planned // every + 1) * every for every in self._boundaries))
            self.replays.launch((boundary - planned) // self.motion.inner)
            planned = boundary
            if planned % self._refresh_every == 0:
                if self.num_steps != planned or self._halted():
                    return
                for step in self.steps:
                    self._choose_frame(step, self.state.positions)

    def _request(self, stop: int) -> _Pending:
        """Queues the copy of the state to the host."""
        on_gpu = self.device.type == "cuda"
        if not self._slots:
            self._slots.append(torch.empty_like(self.state.block, device="cpu", pin_memory=on_gpu))
        block, done, exchange = self._slots.popleft(), None, None
        block.copy_(self.state.block, non_blocking=on_gpu)
        if self.exchange is not None:
            exchange = torch.empty_like(self.exchange.block, device="cpu", pin_memory=on_gpu)
            exchange.copy_(self.exchange.block, non_blocking=on_gpu)
        if on_gpu:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.device))
        return _Pending(stop, block, exchange, done, self._frames)

    def _receive(self, pending: _Pending) -> Snapshot:
        """Waits for a copy, and frees its memory for the next one."""
        if pending.done is not None:
            pending.done.synchronize()
        control, *arrays = (part.numpy().copy() for part in self.state.parts(pending.block))
        energies = ("energy", "restraint_energy", "virial", "energy_spread", "largest_force_spread")
        names = (*energies, "cell", "positions", "velocities", "forces", *(("fast_forces",) * (self.blocks is not None)))
        self._slots.append(pending.block)
        if self.exchange is not None and pending.exchange is not None:
            self.motion = self.motion.at(self.exchange.received(pending.exchange))
        return Snapshot(
            step=int(control[0]),
            timestep=self.motion.timestep,
            temperatures=self.motion.temperatures.copy(),
            frame=pending.frames[0],
            fast_frame=None if self.blocks is None else pending.frames[1],
            particles=self.motion.particles,
            kick=self.motion.thermal_kick,
            inner=self.motion.inner,
            **dict(zip(names, arrays, strict=True)),
        )

    # -- repairs -----------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """If the run has halted, repairs the cause, or raises it; settles what an interruption left."""
        with memory_explained(self.step.batch, self.device):
            if any(step.unsettled for step in self.steps):
                self.replays.drop()
                for step in self.steps:
                    settle(step, "device")
            if not self._halted():
                return
            if (barostat := self.motion.barostat) is not None:
                barostat.require_steady(volumes(self.state.cell.cpu().numpy()), self.state.ratio.cpu().numpy())
            inner_bad = self.blocks is not None and self._verdict() == 1
            step = self.steps[1 if inner_bad else 0]
            flags = step.buffers.outputs["flags"].cpu().numpy()
            self._rounds += 1
            if self._rounds > MOST_ROUNDS:
                raise RuntimeError(f"step {self.num_steps + 1} failed {MOST_ROUNDS} times: {flags.tolist()}")
            if not self._repaired(step, flags):
                self._rounds = 0
                self.state.control[1] = 0  # the next run tries that step again
                self._raise(step, flags)
                if self.blocks is not None:
                    self._take_small_steps()
            self.state.control[1] = 0

    def _repaired(self, step: CapturedStep, flags: NDArray[np.int64]) -> bool:
        """Whether the cause of a halt has been removed: of flags of an evaluation of this step."""
        if flags[FAR] and not flags[NOT_FINITE]:
            self._choose_frame(step, step.buffers.inputs["positions"])
        elif flags[OVERFLOW]:
            log.info("step %d: the neighbour list grows", self.num_steps + 1)
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
        number = self.num_steps + self.motion.inner
        if step is not self.step and self.blocks is not None:
            number = int(self.blocks.quick.control[0]) + 1
        try:
            require_finite(flags, number, step.search.edges, step.buffers, step.ordered)
        except NonFiniteError as error:
            raise (error if step is self.step else of_fast_potential(error)) from None
        self._require_agreement(flags)
        if self.blocks is not None:
            found = self.step.buffers.outputs["forces"] - self.blocks.quick.forces
            self._require_agreement_of_potentials(number, found)

    def _require_agreement_of_potentials(self, number: int = 0, difference: Tensor | None = None) -> None:
        """Raises DisagreementError, unless small steps may follow; difference: None takes that of the state."""
        if self.blocks is None or (multiple := self.motion.multiple_steps) is None:
            return
        own = (self.state.forces - self.state.fast_forces).cpu().numpy()
        limits = self.blocks.limits.cpu().numpy()
        at = self.num_steps
        if worst_atom(own, limits) is None and difference is not None:
            own, at = difference.cpu().numpy(), number
        if worst_atom(own, limits) is None:
            return
        error = disagreement(at, own, limits, self.motion.particles.starts)
        if not multiple.small_steps:
            raise error
        log.warning("%s", error)

    def _verdict(self) -> int:
        """What the inner steps have found, which is forgotten."""
        assert self.blocks is not None
        found = int(self.blocks.verdict[0])
        self.blocks.verdict.zero_()
        return found

    def _take_small_steps(self) -> None:
        """Replaces the steps at which the potentials disagree by such with the full potential alone."""
        assert self.blocks is not None
        first, last = self.num_steps + 1, self.num_steps + self.motion.inner
        log.warning("steps %d to %d are taken with the full potential alone", first, last)
        for _ in range(MOST_ROUNDS):
            self.state.control[1] = 0
            self.step.unsettled = True
            run_compiled(self.blocks.launch_small, self.device)
            self.step.unsettled = False
            self._verdict()
            if not self._halted():
                self.blocks.set_fast_forces()
                self.num_small_blocks += 1
                return
            flags = self.step.buffers.outputs["flags"].cpu().numpy()
            if not self._repaired(self.step, flags):
                self.state.control[1] = 0
                require_finite(flags, last, self.step.search.edges, self.step.buffers, self.step.ordered)
                self._require_agreement(flags)
        raise RuntimeError(f"step {first} failed {MOST_ROUNDS} times")

    def _evaluation(self, number: int, positions: Tensor, cell: Tensor) -> StepResult:
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
            raise at_step(error, self.num_steps + self.motion.inner, self.motion.particles.starts) from None

    def _halted(self) -> bool:
        return bool(self.state.control[1])

    def _choose_frame(self, step: CapturedStep, positions: Tensor) -> None:
        inputs = step.buffers.inputs["positions"]
        if positions is not inputs:
            inputs.copy_(positions)
        refresh(step, "device")
        self._frames = [frame_of(each) for each in self.steps]

    def _set(self, number: int, *given: Tensor | Floats) -> None:
        """given: positions, velocities, forces, energy, restraint energy, virial and cell."""
        state = self.state
        energies = (state.energy, state.restraint_energy, state.virial)
        targets = (state.positions, state.velocities, state.forces, *energies, state.cell)
        state.control.fill_(0)
        for target, value in zip(targets, given, strict=True):
            target.copy_(torch.as_tensor(value))
        state.control[0] = number
        out = self.step.buffers.outputs  # of these positions
        known = "energy_spread" in out
        state.energy_spread.copy_(out["energy_spread"]) if known else state.energy_spread.fill_(torch.nan)
        state.largest_force_spread.fill_(0.0 if known else torch.nan)
        if known:
            state.largest_force_spread.scatter_reduce_(0, state.system, out["force_spread"], "amax")
        if self.exchange is not None:
            self.exchange.begin_at(number)
