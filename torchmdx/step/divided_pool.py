"""DividedPool: structures one after the other on several devices, in place of a StepPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.divided_step import DividedReport, DividedStep, require_divisible
from torchmdx.step.pool import StepPool
from torchmdx.step.results import StepResult
from torchmdx.structures.system import System


class DividedPool:
    """Evaluates structures with a `DividedStep`, which is kept while atoms and periodic directions stay the same.

    Args:
        devices, mode, stress, precision: As for DividedStep.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        devices: Sequence[torch.device | str],
        *,
        mode: str = "auto",
        stress: bool = False,
        precision: str | None = None,
    ) -> None:
        self.potential, self.stress = require_divisible(potential, devices), stress
        self._settings: dict[str, Any] = dict(devices=list(devices), mode=mode, stress=stress, precision=precision)
        self._step: DividedStep | None = None
        self._held: System | None = None

    @property
    def steps(self) -> list[DividedStep]:
        """The current step, if there is one."""
        return [] if self._step is None else [self._step]

    def report(self) -> DividedReport | None:
        """Of the current step; None before the first."""
        return None if self._step is None else self._step.report()

    def __call__(self, system: System, positions: NDArray[np.float64] | None = None) -> StepResult:
        """energy [1], energies [N], forces [N,3] and optionally stress [1,3,3], as NumPy arrays.

        Args:
            positions: Numbers [N,3] instead of the system's. A system that is given with them repeatedly is compared
                only once: its other values must not have changed. Raises what DividedStep raises.
        """
        if self._step is None:
            self._step = DividedStep(self.potential, system, energies=True, **self._settings)
        elif system is not self._held and not self._has_atoms_of(system):
            self._held = None  # whatever happens in `assign`
            self._step.assign(system)
        self._held = system
        place = system.positions.numpy() if positions is None else positions
        return self._step(place, system.cell.numpy())

    def _has_atoms_of(self, system: System) -> bool:
        assert self._step is not None
        batch = self._step.batch
        given, kept = system.partial_charges, batch.partial_charges
        return (
            torch.equal(batch.atomic_numbers, system.atomic_numbers)
            and torch.equal(batch.pbc[0], system.pbc)
            and float(batch.charge[0]) == system.charge
            and (given is kept if given is None or kept is None else torch.equal(given, kept))
        )


Pool = StepPool | DividedPool


def pool_for(
    potential: Potential | Ensemble,
    devices: Sequence[torch.device | str] | None,
    *,
    engine: str | None = None,
    max_memory: int | None = None,
    **options: Any,
) -> Pool:
    """A pool of steps on the potential's device; on several devices if these are given. options: of either class.

    Args:
        engine, max_memory: As for CapturedStep.

    Raises:
        ValueError: For an engine on several devices, where the plan decides, and for max_memory.
    """
    if devices is None:
        return StepPool(potential, engine=engine, max_memory=max_memory, **options)
    if engine is not None:
        raise ValueError(f"engine needs one device, got {engine!r} for {', '.join(map(str, devices))}")
    if max_memory is not None:
        raise ValueError(f"max_memory needs one device, got {max_memory} for {', '.join(map(str, devices))}")
    return DividedPool(potential, devices, **options)
