"""Energy and forces of the atoms of one OpenMM force, from a captured step that is created at its first use."""

from __future__ import annotations

import copy
import threading
import uuid
import warnings
import weakref
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.openmm.embedded_region import EmbeddedStep, require_charged
from torchmdx.openmm.link_atoms import LinkAtoms
from torchmdx.openmm.own_images import warn_of_own_image
from torchmdx.openmm.settings import ForceSettings
from torchmdx.runtime.device_guard import capture_lock
from torchmdx.step.buffer_storage import SPREADS, UNCERTAINTIES, Doubts
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.divided_step import DividedReport, DividedStep, require_divisible
from torchmdx.step.report import StepReport
from torchmdx.step.results import NonFiniteError, SpreadError, StepResult
from torchmdx.step.spread_limit import SpreadLimit
from torchmdx.step.uncertainty import for_step, wants_uncertainty
from torchmdx.structures.system import Batch, System
from torchmdx.structures.units import NANOMETER

FARTHEST = 1e5  # Å


class Spread(NamedTuple):
    """Standard deviations over the members of an ensemble: energy eV, forces [n] eV/Å of the potential's atoms."""

    energy: float
    forces: NDArray[np.float64]


class EnergyUncertainty(NamedTuple):
    """Uncertainties of a single potential: energy eV, energies [n] eV of the potential's atoms."""

    energy: float
    energies: NDArray[np.float64]


class ForceEvaluator:
    """A potential, and the step that evaluates it for the atoms in the settings.

    One evaluator serves any number of Contexts, because each evaluation is given all positions and the box.

    Attributes:
        why: The reason for the force's transport.
        name: Unique, for references in saved Systems.
        source: The potential as it was given in memory, if it was.
    """

    def __init__(self, settings: ForceSettings, potential: Potential | Ensemble) -> None:
        self.settings, self.potential = settings, potential
        self.why, self.name = "restored with its System", uuid.uuid4().hex
        self.source: weakref.ref[Potential | Ensemble] | None = None
        self.limit = SpreadLimit.of(
            potential, settings.max_force_spread, settings.spread_file, settings.max_uncertainty
        )
        if settings.uncertainty:
            for_step(potential, True)  # raises without one
        potential.require_elements(self._system(np.zeros((len(settings.numbers), 3)), None).atomic_numbers)
        # A region of a larger system, such as a ligand in water, is a molecule even in a periodic box.
        region = settings.atoms is not None
        for doubt in potential.doubts(settings.numbers, settings.charge, settings.periodic, region=region):
            warnings.warn(doubt, stacklevel=2)
        self.links: LinkAtoms | None = None
        if settings.link_atoms:
            self.links = LinkAtoms(settings.link_atoms, settings.atoms or (), "cpu")
        if settings.surroundings is not None:
            require_charged(potential)
        if settings.devices:
            wants_uncertainty(potential, settings.devices, settings.uncertainty, settings.max_uncertainty)
            require_divisible(potential, settings.devices)
        self._step: CapturedStep | DividedStep | None = None
        self._is_new = True
        self._copies: dict[int, ForceEvaluator] = {}
        # Steps that belong to one Context.
        self.sessions: dict[int, weakref.ref[CapturedStep]] = {}
        self._lock = threading.Lock()  # Contexts may run in several threads

    def _system(self, positions: NDArray[np.float64], cell: Any) -> System:
        periodic = cell is not None
        return System.create(
            positions,
            np.array(self.settings.numbers),
            cell=cell if periodic else None,
            pbc=periodic,
            charge=self.settings.charge,
        )

    def make_step(
        self,
        positions: NDArray[np.float64],
        cell: NDArray[np.float64] | None,
        mode: str | None = None,
        audit_every: int | None = None,
    ) -> CapturedStep:
        """A new step, which belongs to the caller; mode, audit_every None: those of the settings."""
        settings = self.settings
        structure = self._system(positions[: len(settings.numbers)], cell)
        self._examine(structure)
        options: dict[str, Any] = dict(mode=mode or settings.mode, precision=settings.precision)
        if settings.surroundings is not None:
            assert isinstance(self.potential, Potential)
            return EmbeddedStep(self.potential, structure, settings.surroundings, **options)
        return CapturedStep(
            self.potential,
            structure,
            skin=settings.skin,
            audit_every=settings.audit_every if audit_every is None else audit_every,
            max_force_spread=settings.max_force_spread,
            uncertainty=settings.uncertainty,
            max_uncertainty=settings.max_uncertainty,
            **options,
        )

    def _divided(self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None) -> DividedStep | None:
        """A new step on the devices of the settings, if they name several."""
        settings = self.settings
        if not settings.devices:
            return None
        options: dict[str, Any] = dict(skin=settings.skin) if settings.skin else {}
        structure = self._system(positions, cell)
        self._examine(structure)
        return DividedStep(
            self.potential, structure, devices=settings.devices, mode=settings.mode,
            precision=settings.precision, audit_every=settings.audit_every, **options,
        )  # fmt: skip

    def on_gpu(self, index: int | None) -> ForceEvaluator:
        """Itself, or a copy on the GPU of a Context if the settings name no GPU of their own ("cuda").

        Args:
            index: None for a Context that is not on a GPU. Copies share reports.
        """
        own = self.potential.device
        if index is None or own.type != "cuda" or index == own.index:
            return self
        if torch.device(self.settings.device).index is not None:
            return self
        with self._lock:
            if index not in self._copies:
                other = copy.copy(self)
                other.settings = replace(self.settings, device=f"cuda:{index}")
                other.potential = copy.deepcopy(self.potential).to(f"cuda:{index}")
                other._step, other._lock = None, threading.Lock()
                self._copies[index] = other
            return self._copies[index]

    def structure(self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None) -> System:
        """The potential's atoms, at positions of the settings' particles."""
        if self.links is not None:
            box = None if cell is None else torch.from_numpy(cell)
            positions = self.links.place(torch.from_numpy(positions), box).positions.numpy()
        return self._system(positions[: len(self.settings.numbers)], cell)

    def require_together(self, positions: NDArray[np.float64]) -> None:
        """Raises ValueError for an atom so far from the others that a simulation must have failed; NaN passes.

        Of the settings' particles, those around a region may be anywhere.
        """
        positions = positions[: len(self.settings.numbers)]
        if (np.ptp(positions, axis=0) > FARTHEST).any():
            distances = np.abs(positions - np.median(positions, axis=0)).max(axis=1)
            place = int(np.nanargmax(distances))
            particles = self.settings.particles
            particle = place if particles is None else particles[place]
            x, y, z = positions[place] / NANOMETER
            raise ValueError(
                f"particle {particle} is at ({x:.6g}, {y:.6g}, {z:.6g}) nm: atoms of the potential must be within "
                f"{FARTHEST / NANOMETER:.6g} nm of their centre. The simulation has become unstable, or positions are "
                "in another unit"
            )

    def _examine(self, structure: System) -> None:
        """Before the first evaluation: warns if a region interacts with its own periodic images."""
        if self._is_new and self.settings.atoms is not None:
            warn_of_own_image(structure, self.potential.search_cutoff(Batch.of(structure)), self._label)
        self._is_new = False

    def _label(self, place: int) -> str:
        """An atom of the potential of a region, in a message."""
        atoms = self.settings.atoms or ()
        if place < len(atoms):
            return f"particle {atoms[place]}"
        link = self.settings.link_atoms[place - len(atoms)]
        return f"the link atom between particles {link.inner} and {link.outer}"

    def run(self, step: CapturedStep, positions: Any, cell: Any, *, copy: bool, forces: bool = True) -> StepResult:
        """One evaluation of a step of `make_step`; before SpreadError is raised, the frame is written to the file."""
        try:
            return step(positions, cell, copy=copy, forces=forces)
        except SpreadError as error:
            assert self.limit is not None
            raise self.limit.written(error, self._note(error.atom)) from None

    def _note(self, place: int) -> str:
        """Which particle an atom of the potential is, for a message; empty if it has the same index."""
        return "" if self.settings.atoms is None else f" of the potential, {self._label(place)}"

    def evaluate(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None, *, with_forces: bool = True
    ) -> tuple[float, NDArray[np.float64]]:
        """Energy (eV) and forces [n,3] (eV/Å) at positions [n,3] and cell [3,3] (Å).

        Positions and forces are those of the settings' particles; the forces are a copy, and zeros where a single
        potential on the CPU may omit them. Raises what CapturedStep raises, and ValueError for an atom far away.
        """
        self.require_together(positions)
        if self.links is not None:
            box = None if cell is None else torch.from_numpy(np.asarray(cell))
            placed = self.links.place(torch.from_numpy(np.asarray(positions)), box)
            energy, forces = self._evaluate(placed.positions.numpy(), cell, with_forces)
            return energy, self.links.distribute(torch.from_numpy(forces), placed).numpy()
        return self._evaluate(positions, cell, with_forces)

    def _evaluate(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None, with_forces: bool
    ) -> tuple[float, NDArray[np.float64]]:
        """As `evaluate`, of the potential's atoms."""
        with self._lock:
            if self._step is None:
                self._step = self._divided(positions, cell) or self.make_step(positions, cell)
            if isinstance(self._step, DividedStep):
                found = self._step(positions, cell)
                return float(found.energy[0]), found.forces
            if isinstance(self._step, EmbeddedStep):
                return self._embedded(self._step, positions, cell, with_forces)
            result = self.run(self._step, positions, cell, copy=False, forces=with_forces)
            # Copied before another thread's evaluation overwrites them.
            forces = np.zeros(positions.shape) if result.forces is None else result.forces.copy()
            return float(result.energy[0]), forces

    def _embedded(
        self, step: EmbeddedStep, positions: NDArray[np.float64], cell: NDArray[np.float64] | None, with_forces: bool
    ) -> tuple[float, NDArray[np.float64]]:
        """As `_evaluate`, of a region and the particles around it."""
        outer = step.outer
        if not np.isfinite(positions[outer.count :]).all():
            raise NonFiniteError("positions around an embedded region must be finite, got NaN or infinity")
        outer.positions.copy_(torch.from_numpy(np.asarray(positions)))
        result = self.run(step, outer.inside, cell, copy=False, forces=with_forces)
        forces = outer.forces.cpu().numpy().copy() if with_forces else np.zeros(positions.shape)
        return float(result.energy[0]), forces

    def spread(self) -> Spread | None:
        """The spread of the last evaluation in the newest Context; None before the first, and for a single potential.

        Synchronises with the GPU and copies; evaluations themselves do neither.
        """
        found = self._doubts(SPREADS)
        return None if found is None else Spread(*found)

    def uncertainty(self) -> EnergyUncertainty | None:
        """As `spread`, the uncertainty of a single potential; None where it is not computed."""
        found = self._doubts(UNCERTAINTIES)
        return None if found is None else EnergyUncertainty(*found)

    def _doubts(self, names: Doubts) -> tuple[float, NDArray[np.float64]] | None:
        """Those of the system and of its atoms; None if the newest step has others or none."""
        steps = self._steps()
        step = steps[-1] if steps else None
        if not isinstance(step, CapturedStep) or step.buffers.doubts != names:
            return None
        if step.device.type == "cuda":
            with capture_lock:
                torch.cuda.synchronize(step.device)  # a replay may run on OpenMM's stream
        of_systems, of_atoms = (step.buffers.outputs[name] for name in names)
        return float(of_systems[0]), of_atoms.cpu().numpy().copy()

    def keep_track(self, step: CapturedStep) -> None:
        """Includes a step that belongs to a Context in reports, as long as the step lives."""
        number, sessions = id(step), self.sessions  # the callback must not keep self alive
        sessions[number] = weakref.ref(step, lambda _: sessions.pop(number, None))

    @property
    def num_recoveries(self) -> int:
        """How often a neighbour list had to grow, over all existing Contexts."""
        return sum(step.num_recoveries for step in self._steps())

    def report(self) -> StepReport | DividedReport | None:
        """The report on the step of the newest Context; None before the first evaluation."""
        steps = self._steps()
        return steps[-1].report() if steps else None

    def _steps(self) -> list[CapturedStep | DividedStep]:
        found = [self._step, *(reference() for reference in self.sessions.values())]
        return [step for step in found if step is not None]
