"""A batch of replicas, run to its end: frames, replicas over the threshold, and states to continue from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.snapshot import DOUBTS, FRAME, SAVED, Snapshot
from torchmdx.learning.explored import FAILED, RUNS, THRESHOLD, WHOLE, Explored
from torchmdx.learning.replicas import Replica
from torchmdx.learning.sections import ExploreSection
from torchmdx.learning.uncertainty import uncertainties
from torchmdx.step.results import NonFiniteError, StepError

Floats = NDArray[np.float64]
PARKED = 1.0  # K: the thermostat of a replica that has ended, which stays in its batch
TRUSTED = "trusted_"  # before names of the state that replicas go back to
TRUST = 0.5  # of the threshold, below which a frame is one to go back to


class BatchRun:
    """The run of a batch, whose frames are in a file at the end.

    A replica over the threshold ends or branches: its part of the state goes back to the last frame below half the
    threshold. One that has ended stays there at 1 K, since a batch keeps its shape, and gives no frames. Numbers depend
    on seeds and settings alone, not on interruptions.

    Args:
        path: The file of frames (.npz). Until it is written, the state to continue from is in files next to it.
        make: Makes the dynamics of the batch.
    """

    def __init__(
        self,
        explore: ExploreSection,
        threshold: float,
        batch: Sequence[Replica],
        path: Path,
        make: Callable[[], Dynamics],
    ) -> None:
        self.explore, self.threshold, self.batch, self.path, self._make = explore, threshold, batch, path, make
        self.found = Explored(batch)
        self._part = _part_of(path)

    def run(self, interrupted: Callable[[], bool], note: Callable[[int], None], saved: Callable[[], None]) -> bool:
        """Runs to the end; False if a signal stopped it.

        Args:
            note: Called with steps.
            saved: Called after each state that was written.
        """
        if self.path.exists():
            remove_states(self.path)
            return True
        try:
            self.dynamics = self._make()
        except (StepError, NonFiniteError) as error:  # where the potential is not finite at a start
            self._end(list(range(len(self.batch))), FAILED, 0)
            return self._finished(str(error))
        self.trusted = self.dynamics.snapshot()
        self._continue()
        self._written = time.monotonic()
        while self.alive and self.dynamics.num_steps < self.explore.steps:
            if not self._advance(interrupted, note, saved):
                return False
        self._end(self.alive, WHOLE, self.dynamics.num_steps)
        return self._finished()

    @property
    def alive(self) -> list[int]:
        """Replicas that have not ended."""
        return [k for k, ending in enumerate(self.found.endings) if ending == RUNS]

    def _advance(self, interrupted: Callable[[], bool], note: Callable[[int], None], saved: Callable[[], None]) -> bool:
        """Steps until a replica is over the threshold or fails, or to the end; False if a signal stopped it."""
        begun, every = self.dynamics.num_steps, self.explore.every
        snapshots = self.dynamics.snapshots(self.explore.steps - begun, every=every, interrupted=interrupted)
        try:
            for snapshot in snapshots:
                if snapshot.step > begun and snapshot.step % every == 0:
                    note(snapshot.step)
                    if over := self._look(snapshot):
                        self._go_back(snapshot, over, THRESHOLD)
                        return True
                stop = interrupted()
                if stop or time.monotonic() - self._written >= self.explore.save_every:
                    self._save(snapshot)
                    saved()
                if stop:
                    return False
        except (StepError, NonFiniteError):
            self._blame(self.dynamics.snapshot())
        return True

    def _look(self, snapshot: Snapshot) -> list[int]:
        """Takes the frames of a snapshot; the replicas that are over the threshold."""
        values = uncertainties(snapshot)
        self.found.note(snapshot, values, self.alive)
        good = values <= TRUST * self.threshold
        if good.any():
            self.trusted = self.trusted.with_states(snapshot, good)
        return [k for k in self.alive if not values[k] <= self.threshold]

    def _blame(self, snapshot: Snapshot) -> None:
        """Ends the replicas that made an evaluation fail: those over the threshold, else the largest force."""
        values = uncertainties(snapshot)
        guilty = [k for k in self.alive if not values[k] <= self.threshold]
        if not guilty:
            sizes = np.linalg.norm(snapshot.forces, axis=1)
            largest = np.maximum.reduceat(sizes, snapshot.particles.starts[:-1])
            guilty = [max(self.alive, key=lambda k: float(largest[k]))]
        self.found.note(snapshot, values, guilty)
        self._go_back(snapshot, guilty, FAILED)

    def _go_back(self, snapshot: Snapshot, replicas: list[int], why: str) -> None:
        """Takes replicas back to a frame below the threshold, where they branch or stay."""
        branching = self.explore.over == "branch"
        again = [k for k in replicas if branching and self.found.branched[k] < self.explore.branches]
        self._end([k for k in replicas if k not in again], why, snapshot.step)
        for k in again:
            self.found.branched[k] += 1
        chosen = np.isin(np.arange(len(self.batch)), replicas)
        particles = snapshot.particles
        seeds = [
            int(np.random.default_rng([one.seed, count]).integers(2**62))
            for one, count in zip(self.batch, self.found.branched, strict=True)
        ]
        temperatures = np.array([one.temperature if k in self.alive else PARKED for k, one in enumerate(self.batch)])
        drawn = particles.draw_velocities(temperatures, np.array(seeds, np.int64))
        state = snapshot.with_states(self.trusted, chosen)
        velocities = np.where(chosen[particles.system][:, None], drawn, state.velocities)
        self.dynamics.restore(replace(state, velocities=velocities, temperatures=temperatures))

    def _end(self, replicas: list[int], why: str, step: int) -> None:
        for k in replicas:
            self.found.endings[k], self.found.lasted[k] = why, step

    # Files

    def _finished(self, error: str = "") -> bool:
        self.found.save(self.path, error=np.array(error))
        remove_states(self.path)
        return True

    def _save(self, snapshot: Snapshot) -> None:
        """Writes the state, then the frames, which name its step, then removes earlier states."""
        state = self.path.with_name(f"{self.path.stem}.state-{snapshot.step}.npz")
        snapshot.save(state)
        trusted: dict[str, Any] = {TRUSTED + name: getattr(self.trusted, name) for name in (*SAVED, *DOUBTS)}
        trusted |= {TRUSTED + name: self.trusted.frame[name] for name in FRAME}
        self.found.save(self._part, at=np.array(snapshot.step), **trusted)
        for path in _states_of(self.path):
            if path != state:
                path.unlink()
        self._written = time.monotonic()

    def _continue(self) -> None:
        """Goes on from the files of an earlier session, if there are any."""
        if not self._part.exists():
            return
        self.found, held = Explored.load(self._part, self.batch)
        saved: dict[str, Any] = {name: held[TRUSTED + name] for name in (*SAVED, *DOUBTS)}
        self.trusted = replace(self.trusted, frame={name: held[TRUSTED + name] for name in FRAME}, **saved)
        self.dynamics.restore(self.path.with_name(f"{self.path.stem}.state-{int(held['at'])}.npz"))


def remove_states(path: Path) -> None:
    """Removes the states to continue from, of a batch whose file is this."""
    for one in (_part_of(path), *_states_of(path)):
        one.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    return path.with_suffix(".part.npz")


def _states_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.stem}.state-*.npz"))
