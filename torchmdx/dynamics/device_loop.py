"""The loop of a run on a GPU: K steps of integrator and evaluation in one CUDA graph.

The host launches replays, and waits only for snapshots, while the GPU already works towards the next one. A step whose
evaluation is bad (overflow, atoms too far out, results that are not finite, an ensemble that disagrees) halts the run
on the device: what follows changes nothing. When the host sees it, it repairs the cause and the run continues from the
step before, or it raises the error that a captured step raises.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.dynamics.device_blocks import DeviceBlocks
from torchmdx.dynamics.device_exchange import DeviceExchange
from torchmdx.dynamics.device_repairs import DelayedFlag, Repairs
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.frame import set_frame
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import worst_atom
from torchmdx.dynamics.replays import Replays
from torchmdx.dynamics.snapshot import Snapshot, doubts_named
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.change import fall_back

Floats = NDArray[np.float64]

# Steps between choices of the frame, in which atoms are wrapped and ordered.
REFRESH_EVERY = 2000
SLOTS = 2  # snapshots on their way: the GPU works towards one while the host handles the other
# Replays between reads of the flag that says that the run has halted. Steps launched after a halt are wasted.
CHECK_EVERY = 10


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
        self.step, self.motion, self.device = step, motion, step.device
        self.steps = [step, *([] if fast is None else [fast])]
        self.state = DeviceState(motion, self.device)
        self.blocks = None if fast is None else DeviceBlocks(self.state, motion, step, fast)
        self._slots: deque[Tensor] = deque()
        self.exchanges = exchange is not None
        self.exchange = None if exchange is None else DeviceExchange(exchange, self.state, motion.temperatures)
        size = max(1, steps_per_replay // motion.inner)
        self.replays = Replays(step, self.state, size, mode, self.exchange, self.blocks)
        self.repairs = Repairs(self.steps, self.state, self.blocks, self.replays, motion)
        self._first_evaluations(positions, velocities, cell)
        self.repairs.find_frames()
        # The frame is chosen, and exchanges are attempted, at the end of replays.
        self._refresh_every = math.lcm(REFRESH_EVERY, motion.inner)
        self._boundaries = (self._refresh_every, *(() if exchange is None else (exchange.every,)))
        self.repairs.require_first_agreement()

    def _first_evaluations(self, positions: Floats, velocities: Floats, cell: Floats) -> None:
        """Through the captured steps themselves, which makes room for the edges; then the audit of any capture."""
        step, motion = self.step, self.motion
        given = torch.as_tensor(positions, device=self.device), torch.as_tensor(cell, device=self.device)
        first = self.repairs.evaluation(0, *given)
        if self.replays.captured and (reason := step._judge("device")) is not None:
            self.replays.refuse(reason)
            fall_back(step, reason)
            first = self.repairs.evaluation(0, *given)
        stress = None if first.stress is None else torch.as_tensor(first.stress).cpu().numpy()
        added, pull, virial = motion.outside(positions, cell, stress)
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
        engines = [f"{step.engine_why}: {step.engine.name}" for step in self.steps]
        return "; ".join([self.replays.why, engines[0], *(f"the fast potential: {engine}" for engine in engines[1:])])

    @property
    def num_recoveries(self) -> int:
        return sum(step.num_recoveries for step in self.steps)

    @property
    def num_small_blocks(self) -> int:
        return self.repairs.num_small_blocks

    def close(self) -> None:
        """Nothing to end."""

    @property
    def num_steps(self) -> int:
        return int(self.state.control[0])

    def set_motion(self, motion: Motion) -> None:
        """Takes other temperatures."""
        self.motion = self.repairs.motion = motion
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
        planned = self._resume()
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
                self.repairs.rounds = 0
                yield found
            else:
                waiting.extendleft(reversed([oldest.stop, *(item.stop for item in pending)]))
                self._slots.extend(item.block for item in pending)
                pending.clear()
                planned = self._resume()

    def snapshot(self) -> Snapshot:
        return self._receive(self._request(self.num_steps))

    def restore(self, given: Snapshot) -> None:
        positions = torch.as_tensor(given.positions, device=self.device)
        cell = torch.as_tensor(given.cell, device=self.device)
        self.repairs.evaluation(given.step, positions, cell)  # raises before anything has changed
        fast_forces = None if self.blocks is None else self.blocks.evaluated(positions, cell)
        energies = (given.energy, given.restraint_energy, given.virial)
        self._set(given.step, given.positions, given.velocities, given.forces, *energies, given.cell)
        if self.blocks is not None and fast_forces is not None:
            self.state.fast_forces.copy_(fast_forces)
            if given.fast_forces is not None and given.fast_frame is not None:
                self.state.fast_forces.copy_(torch.as_tensor(given.fast_forces))
                set_frame(self.blocks.fast, given.fast_frame)
        set_frame(self.step, given.frame)
        self.repairs.find_frames()

    def set_velocities(self, velocities: Floats) -> None:
        self.state.velocities.copy_(torch.as_tensor(velocities))

    # -- launches ----------------------------------------------------------------------------------------------------

    def _resume(self) -> int:
        """Repairs a run that has halted; the step reached.

        Exchanges are due if small steps ended there, or an interruption came between the step and its attempts.
        """
        self.repairs.resume()
        if self.exchange is not None:
            self.exchange.launch()
        return self.num_steps

    def _launch_to(self, planned: int, stop: int) -> None:
        """Launches the steps from `planned` to `stop`, or fewer if the run halts on the way."""
        halted = DelayedFlag(self.state.control[1])
        most = CHECK_EVERY * self.replays.steps_per_replay * self.motion.inner
        while planned < stop:
            boundary = min(stop, planned + most, *((planned // every + 1) * every for every in self._boundaries))
            self.replays.launch((boundary - planned) // self.motion.inner)
            planned = boundary
            if planned % self._refresh_every == 0:
                if self.num_steps != planned or self.repairs.halted():
                    return
                for step in self.steps:
                    self.repairs.choose_frame(step, self.state.positions)
            elif planned < stop and halted.at_last_read():
                return

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
        return _Pending(stop, block, exchange, done, self.repairs.frames)

    def _receive(self, pending: _Pending) -> Snapshot:
        """Waits for a copy, and frees its memory for the next one."""
        if pending.done is not None:
            pending.done.synchronize()
        control, *arrays = (part.numpy().copy() for part in self.state.parts(pending.block))
        energies = ("energy", "restraint_energy", "virial", "energy_doubt", "largest_doubt")
        names = (
            *energies,
            "cell",
            "positions",
            "velocities",
            "forces",
            *(("fast_forces",) * (self.blocks is not None)),
        )
        self._slots.append(pending.block)
        if self.exchange is not None and pending.exchange is not None:
            self.motion = self.motion.at(self.exchange.received(pending.exchange))
        found, inner = dict(zip(names, arrays, strict=True)), self.motion.inner
        if self.blocks is not None:
            difference = found["forces"] - found["fast_forces"]
            inner = inner if worst_atom(difference, self.blocks.limits_on_host)[1] <= 1 else 1
        doubts = doubts_named(self.step.buffers.doubts, found.pop("energy_doubt"), found.pop("largest_doubt"))
        return Snapshot(
            **doubts,
            step=int(control[0]),
            timestep=self.motion.timestep,
            temperatures=self.motion.temperatures.copy(),
            frame=pending.frames[0],
            fast_frame=None if self.blocks is None else pending.frames[1],
            particles=self.motion.particles,
            kick=self.motion.thermal_kick,
            inner=inner,
            **found,
        )

    def _set(self, number: int, *given: Tensor | Floats) -> None:
        """given: positions, velocities, forces, energy, restraint energy, virial and cell."""
        state = self.state
        energies = (state.energy, state.restraint_energy, state.virial)
        targets = (state.positions, state.velocities, state.forces, *energies, state.cell)
        self.repairs.go_on()
        for target, value in zip(targets, given, strict=True):
            target.copy_(torch.as_tensor(value))
        state.control[0] = number
        out = self.step.buffers.outputs  # of these positions
        if (names := self.step.buffers.doubts) is None:
            state.energy_doubt.fill_(torch.nan)
            state.largest_doubt.fill_(torch.nan)
        else:
            state.energy_doubt.copy_(out[names[0]])
            state.largest_doubt.zero_().scatter_reduce_(0, state.system, out[names[1]], "amax")
        if self.exchange is not None:
            self.exchange.begin_at(number)
