"""The loop of a run on several devices: each has a process, with some of the structures.

Structures move independently of each other, so that processes meet only for output and for exchanges, of which they
send energies and receive temperatures. Results are those of one process within rounding.
"""

from __future__ import annotations

import copy
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.dynamics.device_process import Arrays, ProcessShare, fields_of, serve
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import DisagreementError
from torchmdx.dynamics.restraints import Restraint
from torchmdx.dynamics.shares import cut, joined, share_of
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.results import SpreadError
from torchmdx.step.spread_limit import at_step
from torchmdx.structures.system import Batch

Floats = NDArray[np.float64]

FIRST_PIECE, SHORTEST, LONGEST = 100, 0.25, 1.0  # steps between looks at signals; seconds that they may take
FAREWELL = 5.0  # s for a process to end by itself


@dataclass(eq=False)
class _Process:
    """A process, our end of its connection, its structures and their atoms."""

    device: str
    process: Any
    connection: Connection
    systems: slice
    atoms: slice


class ProcessLoop:
    """Structures in consecutive shares on devices; see `HostLoop` for the methods.

    Raises ValueError for less structures than devices, and what a `Dynamics` raises, with the structures and the
    device. After such an error all structures are at the last snapshot. A process that dies ends the run with a
    ChildProcessError.
    """

    exchanges = True

    def __init__(
        self,
        make: Callable[..., Any],
        potential: Potential | Ensemble,
        batch: Batch,
        motion: Motion,
        velocities: Floats,
        devices: Sequence[str],
        restraints: Sequence[Restraint],
        options: dict[str, Any],
        exchange: TemperatureExchange | None,
    ) -> None:
        """make: the class `Dynamics`; options: further arguments of it."""
        self.motion, self.exchange, self._step, self._sent = motion, exchange, 0, 0
        self._piece, self._unsettled = FIRST_PIECE, False
        self._processes: list[_Process] = []
        self._ending = Finalize(self, _end, args=(self._processes,), exitpriority=10)
        starts, on_cpu = motion.particles.starts, copy.deepcopy(potential).to("cpu")
        if options.get("fast") is not None:
            options = {**options, "fast": copy.deepcopy(options["fast"]).to("cpu")}
        bounds = np.linspace(0, batch.num_systems, len(devices) + 1).round().astype(int).tolist()
        structures = batch.systems()
        for device, low, high in zip(devices, bounds[:-1], bounds[1:], strict=True):
            systems, atoms = slice(low, high), slice(int(starts[low]), int(starts[high]))
            own = dict(
                integrator=motion.integrator,
                timestep=motion.timestep,
                temperature=motion.temperatures[systems],
                seed=motion.seeds[systems],
                velocities=velocities[atoms],
                masses=motion.particles.masses[atoms],
                frozen=~motion.particles.mobile[atoms],
                barostat=motion.barostat,
                restraints=[share_of(restraint, systems) for restraint in restraints],
                **options,
            )
            threads = max(1, torch.get_num_threads() // len(devices))
            share = ProcessShare(on_cpu, device, structures[low:high], own, threads)
            self._processes.append(_start(make, share, systems, atoms))
        try:
            self._receive()
        except BaseException:
            self.close()
            raise
        self._base = self.snapshot()

    @property
    def why(self) -> str:
        found = self._ask("why")
        devices = ", ".join(process.device for process in self._processes)
        return f"{len(found)} processes on {devices}: {found[0]}"

    @property
    def num_steps(self) -> int:
        self._settle()
        return self._step

    @property
    def num_recoveries(self) -> int:
        return sum(self._ask("num_recoveries"))

    @property
    def num_small_blocks(self) -> int:
        return sum(self._ask("num_small_blocks"))

    def snapshots(self, stops: Iterator[int], interrupted: Callable[[], bool] = lambda: False) -> Iterator[Snapshot]:
        """Integrates to each of the steps in turn, and yields the state there, or where it is interrupted."""
        self._base = self.snapshot()
        for stop in stops:
            while self._step < stop:
                if interrupted():
                    yield self._keep()
                    return
                self._advance(stop)
            yield self._keep()

    def snapshot(self) -> Snapshot:
        self._settle()
        parts: list[Arrays] = self._ask("snapshot")
        return joined(parts, [process.atoms.start for process in self._processes], self.motion.particles)

    def restore(self, given: Snapshot) -> None:
        everything = fields_of(given)
        num_atoms = len(given.positions)
        self._ask("restore", lambda process: (cut(everything, process.atoms, process.systems, num_atoms),))
        self._step, self._base = given.step, given
        self.motion = self.motion.at(given.temperatures)

    def set_motion(self, motion: Motion) -> None:
        """Takes other temperatures."""
        self._ask("set_temperature", lambda process: (motion.temperatures[process.systems],))
        self.motion = motion
        self._base = replace(self._base, temperatures=motion.temperatures.copy())

    def set_velocities(self, velocities: Floats) -> None:
        self._ask("set_velocities", lambda process: (velocities[process.atoms],))
        if self._base.step == self._step:
            self._base = replace(self._base, velocities=velocities.copy())

    def close(self) -> None:
        """Ends the processes."""
        self._ending()

    # -- steps -------------------------------------------------------------------------------------------------------

    def _advance(self, stop: int) -> None:
        """Steps towards a stop: for a while, and at most to the next attempt to exchange."""
        piece = -(-self._piece // self.motion.inner) * self.motion.inner
        target, exchange = min(stop, self._step + piece), self.exchange
        if exchange is not None:
            target = min(target, (self._step // exchange.every + 1) * exchange.every)
        start, count = time.monotonic(), target - self._step
        try:
            self._ask("run", lambda process: (count,))
            if exchange is not None and target % exchange.every == 0:
                energies = np.concatenate(self._ask("energies"))
                temperatures = exchange.decide(target, energies, self.motion.temperatures)
                self._ask("exchange", lambda process: (temperatures[process.systems],))
                self.motion = self.motion.at(temperatures)
        except ChildProcessError:
            raise
        except Exception:
            self._unsettled = True
            self._settle()
            raise
        self._step, seconds = target, time.monotonic() - start
        if count == piece and seconds < SHORTEST:
            self._piece *= 2
        elif seconds > LONGEST:
            self._piece = max(1, self._piece // 2)

    def _settle(self) -> None:
        """After an error or an interruption: takes all structures back to the last snapshot."""
        if self._unsettled:
            self.restore(self._base)
            self._unsettled = False

    def _keep(self) -> Snapshot:
        self._base = self.snapshot()
        return self._base

    # -- messages ----------------------------------------------------------------------------------------------------

    def _ask(self, name: str, arguments: Callable[[_Process], tuple[Any, ...]] = lambda process: ()) -> list[Any]:
        """The answers of all processes to a message. Raises the first error, after all have answered."""
        self._sent += 1
        for process in self._processes:
            try:
                process.connection.send((self._sent, name, arguments(process)))
            except OSError:
                raise self._death(process) from None
        before, self._unsettled = self._unsettled, True  # until all have answered
        answers = self._receive()
        self._unsettled = before
        return answers

    def _receive(self) -> list[Any]:
        answers: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        while len(answers) < len(self._processes):
            for ready in wait([process.connection for process in self._processes]):
                place = next(k for k, process in enumerate(self._processes) if process.connection is ready)
                try:
                    number, value, error = self._processes[place].connection.recv()
                except (EOFError, OSError):
                    raise self._death(self._processes[place]) from None
                if number != self._sent:
                    continue  # of a message whose sender was interrupted
                answers[place] = value
                if error is not None:
                    errors[place] = error
        if errors:
            place = min(errors)
            process, error = self._processes[place], errors[place]
            if isinstance(error, SpreadError) and error.step is not None:
                error.atom += process.atoms.start
                raise at_step(error, error.step, self.motion.particles.starts)
            if isinstance(error, DisagreementError):
                error.atom += process.atoms.start
            where = f"structures {process.systems.start} to {process.systems.stop - 1}, on {process.device}"
            error.args = (f"{error} ({where}, where atoms and structures are numbered from 0)",)
            raise error
        return [answers[place] for place in range(len(self._processes))]

    def _death(self, process: _Process) -> ChildProcessError:
        process.process.join(FAREWELL)
        code = process.process.exitcode
        self.close()
        return ChildProcessError(
            f"the process of {process.device} ended with exit status {code}; a script that starts processes must do so "
            'under `if __name__ == "__main__":`'
        )


def _start(make: Callable[..., Any], share: ProcessShare, systems: slice, atoms: slice) -> _Process:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, make), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.send(share)
    except OSError:
        ours.close()  # the process has ended; the first answer tells
    return _Process(share.device, process, ours, systems, atoms)


def _end(processes: list[_Process]) -> None:
    """Closes the connections, which ends the processes; kills those that continue."""
    for process in processes:
        process.connection.close()
    until = time.monotonic() + FAREWELL
    for process in processes:
        process.process.join(max(0.0, until - time.monotonic()))
        if process.process.is_alive():
            process.process.kill()
            process.process.join()
