"""DividedStep: energy, forces and stress of one large structure on several devices, in one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from torchmdx.models.ensemble import Ensemble, frozen
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.fork_guard import check_fork
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time
from torchmdx.step.capture_policy import require_mode
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.divided_domain import DomainPart
from torchmdx.step.divided_structure import DividedStructure, Sums, require_finite_positions
from torchmdx.step.division import Grid, choose_grid
from torchmdx.step.domain_reach import reach, why_not
from torchmdx.step.report import StepReport
from torchmdx.step.results import StepResult
from torchmdx.step.state import checked_precision
from torchmdx.step.undivided_structure import UndividedStructure
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch, System


@dataclass(frozen=True, kw_only=True)
class DividedReport:
    """How a divided step evaluates: parts along each cell vector, assignments so far, and one entry for each domain.

    Attributes:
        owned, ghosts: Numbers of atoms.
        steps: Reports of the domains' captured steps; None for a domain without atoms.
    """

    grid: Grid
    assignments: int
    devices: tuple[str, ...]
    owned: tuple[int, ...]
    ghosts: tuple[int, ...]
    steps: tuple[StepReport | None, ...]


@one_thread_at_a_time("__call__", "assign", "report", "__reduce__")
class DividedStep:
    """Evaluates one structure on several devices; used, and giving results, as a `CapturedStep`.

    Example::

        step = DividedStep(potential, System.from_ase(atoms), devices=["cpu", "cpu"])  # or "cuda:0", "cuda:1"
        result = step(atoms.positions, atoms.cell.array)

    The structure is cut into bricks with equal numbers of atoms, one for each device. Each has copies of the atoms up
    to the potential's reach around it: the cutoff, times its layers and one. These are chosen anew once atoms have
    moved by half of `skin`, Å. Results are sums over the bricks in a fixed order, and the caller's own.

    Args:
        devices: One may be named more than once, and "cpu" too. Where the copies would outweigh what is divided, in a
            small structure, fewer devices are used; on a single one it is evaluated by a CapturedStep.
        grid: Parts along each cell vector instead of those with the fewest copies.
        mode, stress, energies, precision, audit_every: As for CapturedStep. Positions of a divided structure that are
            given as a CUDA tensor go through the host, as results do.

    Raises:
        ValueError: For several structures, for an ensemble, whose spread is not a sum over bricks, and for potentials
            in which atoms at any distance matter, TensorNet2 and Coulomb energies, on more than one device.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        structure: System | Batch,
        *,
        devices: Sequence[torch.device | str],
        grid: Sequence[int] | None = None,
        mode: str = "auto",
        stress: bool = False,
        energies: bool = False,
        skin: float = 1.5,
        precision: str | None = None,
        audit_every: int = 0,
    ) -> None:
        self.devices = checked_devices(devices, mode)
        require_divisible(potential, self.devices)
        if not 0 < skin < math.inf:
            raise ValueError(f"skin must be > 0 Å, got {skin}")
        if grid is not None and (len(grid) != 3 or min(grid) < 1 or math.prod(grid) > len(self.devices)):
            raise ValueError(f"grid must be three numbers >= 1 with a product <= {len(self.devices)}, got {grid}")
        self.lock = ThreadLock()
        self.potential = cast(Potential, frozen(potential))
        self.asked_grid = None if grid is None else (int(grid[0]), int(grid[1]), int(grid[2]))
        self.mode, self.stress, self.energies, self.skin = mode, stress, energies, skin
        if audit_every < 0:
            raise ValueError(f"audit_every must be >= 0 evaluations, got {audit_every}")
        self.precision, self.audit_every = checked_precision(potential, precision), audit_every
        self.num_evaluations = self.num_assignments = 0
        self._threads: ThreadPoolExecutor | None = None
        self._running: list[Future[DomainPart]] = []
        self.assign(structure)

    def assign(self, structure: System | Batch) -> None:
        """Takes another structure, of any size.

        After an error or an interruption the step still has the last one.

        Raises:
            ValueError: For one that can't be divided.
        """
        batch = Batch.of(structure).to("cpu")
        if batch.num_systems != 1:
            raise ValueError(f"only one structure can be divided, got a batch of {batch.num_systems}")
        self.potential.require_elements(batch.atomic_numbers)
        self._wait()
        require_finite_positions(self.num_evaluations, batch.positions.numpy())
        options: dict[str, Any] = dict(mode=self.mode, precision=self.precision, audit_every=self.audit_every)
        lattice.require_lattice(batch.cell, batch.pbc)
        grid = self.asked_grid or self._grid_for(batch)
        taken: DividedStructure | UndividedStructure
        if math.prod(grid) == 1:
            options |= dict(stress=self.stress, energies=self.energies)
            taken = UndividedStructure(batch, self.potential, self.devices[0], options)
        else:
            options |= dict(virials=self.stress)
            taken = DividedStructure(batch, self.potential, self.devices, grid, self.skin, options)
            taken.divide()
        self.num_assignments += 1
        self._taken = taken

    def _grid_for(self, batch: Batch) -> Grid:
        """The grid with the least work for a device."""
        frame = lattice.complete(batch.cell.double(), batch.pbc)[0].numpy()
        places, pbc = batch.positions.double().numpy(), batch.pbc[0].numpy()
        return choose_grid(places, frame, pbc, len(self.devices), reach(self.potential) + self.skin)

    @property
    def batch(self) -> Batch:
        """The structure, with the positions it was given with and the last cell."""
        return replace(self._taken.batch, cell=self._taken.cell.clone())

    @property
    def grid(self) -> Grid:
        return self._taken.grid

    def __call__(self, positions: Any, cell: Any = None) -> StepResult:
        """Energy, forces and optionally stress at positions [N,3] Å and cell [3,3] Å (None: the last cell).

        Raises ValueError or TypeError for positions or a cell of a wrong shape or type, NonFiniteError, and what
        CapturedStep raises.
        """
        for device in self.devices:
            check_fork(device)
        self._wait()
        taken = self._taken
        if isinstance(taken, UndividedStructure):
            result = taken(positions, cell, self.num_evaluations + 1)
            self.num_evaluations += 1
            return _on_device(result, positions)
        taken.take_in(positions, cell, self.num_evaluations + 1)
        self.num_evaluations += 1
        return _on_device(self._evaluated(taken), positions)

    def _evaluated(self, taken: DividedStructure) -> StepResult:
        """The results, after another division if atoms have moved too far.

        GPUs check that while they evaluate, and evaluate again if it was so.
        """
        if taken.holds(sample=taken.checks_in_parallel):
            try:
                found, sums = taken.launched(energies=self.energies) or self._run(taken)
            except (ArithmeticError, ValueError, RuntimeError):
                if taken.holds():
                    raise
            else:
                if all(part.held for part in found):
                    return taken.result(found, sums, stress=self.stress)
        taken.divide()
        self.num_assignments += 1
        return taken.result(*self._run(taken), stress=self.stress)

    def _run(self, taken: DividedStructure) -> tuple[list[DomainPart], Sums]:
        """As `launched`: domains on GPUs in threads, but for one, so that all work at the same time."""
        works = taken.works()
        away = [domain.device.type == "cuda" for domain in taken.domains]
        if all(away):
            away[-1] = False
        if any(away) and self._threads is None:
            self._threads = ThreadPoolExecutor(len(self.devices), thread_name_prefix="torchmdx-domain")
        futures: dict[int, Future[DomainPart]] = {}
        try:
            for number, work in enumerate(works):
                if away[number]:
                    assert self._threads is not None
                    futures[number] = self._threads.submit(work)
                    self._running.append(futures[number])
            here = {number: work() for number, work in enumerate(works) if not away[number]}
        finally:  # whatever happens, no thread uses the buffers of a domain after this
            self._wait()
        found = [futures[number].result() if away[number] else here[number] for number in range(len(works))]
        return found, taken.summed(found, energies=self.energies)

    def _wait(self) -> None:
        """Waits for evaluations in threads, also for those that an interrupted call has left."""
        if self._running:
            wait(self._running)
            self._running.clear()

    def report(self) -> DividedReport:
        """How this step evaluates, with the reports of its domains."""
        parts = self._taken.parts()
        return DividedReport(
            grid=self._taken.grid,
            assignments=self.num_assignments,
            devices=tuple(str(device) for device, _, _, _ in parts),
            owned=tuple(owned for _, owned, _, _ in parts),
            ghosts=tuple(ghosts for _, _, ghosts, _ in parts),
            steps=tuple(None if step is None else step.report() for _, _, _, step in parts),
        )

    @property
    def num_recoveries(self) -> int:
        """How often neighbour lists of the domains had to grow."""
        return sum(step.num_recoveries for step in self._steps())

    def memory_bytes(self) -> int:
        """Memory of the domains' steps, of all devices together."""
        return sum(step.memory_bytes() for step in self._steps())

    def _steps(self) -> list[CapturedStep]:
        return [step for _, _, _, step in self._taken.parts() if step is not None]

    def __reduce__(self) -> tuple[Any, ...]:
        options = dict(
            devices=[str(device) for device in self.devices], grid=self.asked_grid, mode=self.mode, stress=self.stress,
            energies=self.energies, skin=self.skin, precision=self.precision, audit_every=self.audit_every,
        )  # fmt: skip
        return _restored, (type(self), self.potential, self.batch, options)


def require_divisible(potential: Potential | Ensemble, devices: Sequence[Any]) -> Potential:
    """The potential itself. Raises ValueError if it cannot be evaluated on these devices."""
    if isinstance(potential, Ensemble):
        raise ValueError(
            f"an ensemble can't be divided among devices, since the spread of forces is not a sum over domains: give "
            f"one of its {len(potential)} members"
        )
    if len(devices) > 1 and (reason := why_not(potential)) is not None:
        raise ValueError(f"this potential can't be divided among {len(devices)} devices, and needs one: {reason}")
    return potential


def checked_devices(devices: Sequence[torch.device | str], mode: str) -> list[torch.device]:
    """The devices. Raises ValueError for none and for one that does not exist, and as `require_mode`."""
    if isinstance(devices, (str, torch.device)) or not devices:
        raise ValueError(f"devices must be a list of one or more devices, got {devices!r}")
    found = [choose_device(device) for device in devices]
    for device in found:
        require_mode(mode, device)
    return found


def chosen_devices(
    device: torch.device | str | None, devices: Sequence[torch.device | str] | None, mode: str
) -> tuple[torch.device, list[str] | None]:
    """(device of the potential, names of several devices that share a structure or None).

    Raises:
        ValueError: If both are given, for a device that does not exist, and as `checked_devices`.
    """
    if devices is None:
        return choose_device(device), None
    if device is not None:
        raise ValueError(f"device or devices can be given, not both, got {str(device)!r} and {devices!r}")
    found = checked_devices(devices, mode)
    return found[0], [str(each) for each in found]


def _on_device(result: StepResult, positions: Any) -> StepResult:
    """The result as tensors on the GPU that positions were given on; otherwise as it is."""
    if not (isinstance(positions, Tensor) and positions.device.type == "cuda"):
        return result
    given = {name: values for name, values in vars(result).items() if values is not None}
    return StepResult(**{name: torch.as_tensor(values).to(positions.device) for name, values in given.items()})


def _restored(kind: type[DividedStep], potential: Potential, batch: Batch, options: dict[str, Any]) -> DividedStep:
    return kind(potential, batch, **options)
