"""A process of a run on several devices: a `Dynamics` of some of the structures, driven by messages.

A message is (number, name, arguments), its answer (number, value or None, error or None). The process ends when the
connection does, so that none outlives the run.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.dynamics.multiple_steps import DisagreementError
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.results import SpreadError
from torchmdx.structures.system import System

Arrays = dict[str, Any]  # the fields of a snapshot, without what every process knows


@dataclass(frozen=True, eq=False)
class ProcessShare:
    """What a process needs: the potential on the CPU, its device, structures, and options of `Dynamics`."""

    potential: Potential | Ensemble
    device: str
    structures: list[System]
    options: dict[str, Any]
    num_threads: int


class Server:
    """Answers messages: each public method is one."""

    def __init__(self, make: Callable[..., Any], share: ProcessShare) -> None:
        fast = share.options.get("fast")
        own = {**share.options, "fast": None if fast is None else fast.to(share.device)}
        with warnings.catch_warnings(action="ignore"):  # the process that drives this one has warned
            self._dynamics = make(share.potential.to(share.device), share.structures, **own)

    def why(self) -> str:
        return str(self._dynamics.why)

    def num_recoveries(self) -> int:
        return int(self._dynamics.num_recoveries)

    def num_small_blocks(self) -> int:
        return int(self._dynamics.num_small_blocks)

    def run(self, num_steps: int) -> int:
        """Takes steps; returns the step reached."""
        return int(self._dynamics.run(num_steps).step)

    def energies(self) -> NDArray[np.float64]:
        """Energies [S] that exchanges compare, eV."""
        snapshot = self._dynamics.snapshot()
        found: NDArray[np.float64] = snapshot.energy + snapshot.restraint_energy
        return found

    def snapshot(self) -> Arrays:
        return fields_of(self._dynamics.snapshot())

    def restore(self, given: Arrays) -> None:
        self._dynamics.restore(Snapshot(**given, particles=self._dynamics.motion.particles))

    def set_temperature(self, temperatures: NDArray[np.float64]) -> None:
        self._dynamics.set_temperature(temperatures)

    def set_velocities(self, velocities: NDArray[np.float64]) -> None:
        self._dynamics.set_velocities(velocities)

    def exchange(self, temperatures: NDArray[np.float64]) -> None:
        """Takes temperatures after an exchange, with velocities scaled to them."""
        before = self._dynamics.snapshot()
        scale = np.sqrt(temperatures / before.temperatures)
        self._dynamics.set_velocities(before.velocities * scale[before.particles.system, None])
        self._dynamics.set_temperature(temperatures)


def fields_of(snapshot: Snapshot) -> Arrays:
    """All but the particles."""
    return {field.name: getattr(snapshot, field.name) for field in fields(snapshot) if field.name != "particles"}


def serve(connection: Connection, make: Callable[..., Any]) -> None:
    """The main function of a process. make: `Dynamics`. The first message is the share of this process."""
    # Ctrl-C and signals of a queue system are sent to all processes: the first one decides what happens.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):  # the first process has ended
        share: ProcessShare = connection.recv()
        if torch.device(share.device).type == "cpu":
            torch.set_num_threads(share.num_threads)
        server, error = None, None
        try:
            server = Server(make, share)
        except Exception as caught:
            error = caught
        connection.send((0, None, _sendable(error)))
        while True:
            number, name, arguments = connection.recv()
            value, error = None, None
            try:
                value = getattr(server, name)(*arguments)
            except Exception as caught:
                error = caught
            connection.send((number, value, _sendable(error)))


def _sendable(error: Exception | None) -> Exception | None:
    """The error with its text alone, as a RuntimeError where its type needs more than that."""
    if error is None:
        return None
    try:
        plain = type(error)(str(error))
        if isinstance(error, (SpreadError, DisagreementError)):
            vars(plain).update(vars(error))  # where it is
        pickle.loads(pickle.dumps(plain))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return plain
