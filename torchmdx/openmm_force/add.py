"""Adding a potential to an openmm.System: checks, the choice of a transport, and what is known of it afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import openmm
from openmm import app

from torchmdx.checkpoints.ensemble_file import files_in
from torchmdx.checkpoints.locate import locate
from torchmdx.checkpoints.prepare import PotentialSource, prepare_potential
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.openmm_force.atoms import checked_atoms, elements_of, is_periodic
from torchmdx.openmm_force.evaluator import Evaluator, Spread
from torchmdx.openmm_force.native.one_context import share_or_tell
from torchmdx.openmm_force.settings import ForceSettings, hash_of, resolved_device
from torchmdx.openmm_force.transport_native import make_native_force, why_not_native
from torchmdx.openmm_force.transport_python import make_python_force
from torchmdx.openmm_force.transport_torch import make_torch_force, why_not_torch
from torchmdx.potentials import shipped
from torchmdx.step.report import StepReport
from torchmdx.system import checked_charge

log = logging.getLogger(__name__)

TRANSPORTS = ("auto", "native", "torch", "python")
_MAKERS: dict[str, Callable[[Evaluator, openmm.System], openmm.Force]] = {
    "native": make_native_force,
    "torch": make_torch_force,
    "python": make_python_force,
}


@dataclass(eq=False)
class PotentialForce:
    """A potential that has been added to a System.

    force: the openmm.Force. transport: "native", "torch" or "python". why: in a line, why it is that one.
    """

    force: openmm.Force
    transport: str
    why: str
    evaluator: Evaluator

    @property
    def num_recoveries(self) -> int:
        """How often a neighbour list had to grow during a run; each time that evaluation was done again."""
        return self.evaluator.num_recoveries

    def report(self) -> StepReport | None:
        """How evaluations are done, in numbers; None before the first."""
        return self.evaluator.report()

    @property
    def is_ensemble(self) -> bool:
        """Whether the potential has several members."""
        return isinstance(self.evaluator.potential, Ensemble)

    @property
    def spread(self) -> Spread | None:
        """How far an ensemble's members lay apart in the last evaluation; None before it, and for a single potential.

        Forces' are stale where that evaluation was of the energy alone, as for a barostat.
        """
        return self.evaluator.spread()


def add_potential(
    system: openmm.System,
    topology: app.Topology,
    potential: PotentialSource = None,
    atoms: Iterable[int] | None = None,
    *,
    charge: float = 0.0,
    transport: str = "auto",
    mode: str = "auto",
    precision: str = "float32",
    device: str | None = None,
    skin: float = 0.0,
    audit_every: int = 0,
    force_group: int = 0,
    periodic: bool | None = None,
    scale_parameter: str | None = None,
    max_force_spread: float | None = None,
    spread_file: str | Path | None = None,
    name: str = "torchmdx",
) -> PotentialForce:
    """Adds the energy of a potential, for all atoms or some, to an OpenMM system.

    potential: as for `torchmdx.Calculator`, one or an ensemble; None for the one that torchmdx comes with.
    atoms: indices of the particles that the potential sees, None for all; nothing else of the system is touched.
    charge: total charge of these atoms, e. mode, precision, skin: as for CapturedStep.
    audit_every: compare every so many evaluations with the exact model, 0 for none; an OpenMMException stops the run
        where they disagree, with "native" some evaluations later.
    device: where torch works: "cpu", "cuda", "cuda:1"; None takes a GPU if there is one.
    transport: how positions and forces travel between OpenMM and torch; "auto" takes the fastest that works here.
    periodic: whether atoms see periodic images; None: if system or topology has a box.
    scale_parameter: a global parameter of the Context, 1 at first, that multiplies energy and forces.
    max_force_spread, spread_file: of an ensemble, as for `torchmdx.Calculator`; OpenMM turns the error into an
        OpenMMException of the same text, which ends the step.

    Raises ValueError or TypeError, with the requirement and the value, for what does not fit, and ImportError for a
    transport that is not installed.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, got {transport!r}")
    if not 0 <= force_group <= 31:
        raise ValueError(f"force_group must be between 0 and 31, got {force_group}")
    chosen = checked_atoms(system, topology, atoms)
    checkpoint = _checkpoint_of(potential)
    settings = ForceSettings(
        elements_of(topology, chosen), chosen, system.getNumParticles(), checked_charge(charge),
        is_periodic(system, topology, periodic), precision, mode, resolved_device(device), skin, audit_every,
        scale_parameter, checkpoint, hash_of(checkpoint), max_force_spread,
        None if spread_file is None else str(spread_file),
    )  # fmt: skip
    evaluator = Evaluator(settings, prepare_potential(potential, settings.dtype, settings.device))
    if settings.device.startswith("cuda"):
        share_or_tell()  # before any Context: every transport gains
    kind, why = _choose(transport, settings)
    if settings.periodic:
        _take_box(system, topology)
    force = _MAKERS[kind](evaluator, system)
    force.setForceGroup(force_group)
    force.setName(name)
    return PotentialForce(force, kind, why, evaluator)


def _take_box(system: openmm.System, topology: app.Topology) -> None:
    """The topology's box, where nothing in the system has used its own: that may still be OpenMM's default of 2 nm."""
    box = topology.getPeriodicBoxVectors()
    if box is not None and not system.usesPeriodicBoundaryConditions():
        system.setDefaultPeriodicBoxVectors(*box)


def _checkpoint_of(potential: PotentialSource) -> str | tuple[str, ...] | None:
    """The file of a potential, or those of several; None where any is given in memory.

    One that comes with torchmdx on any machine is called by its name.
    """
    if potential is None:
        return _called(locate())
    if isinstance(potential, (str, Path)):
        if Path(potential).is_dir():
            return tuple(str(file.resolve()) for file in files_in(Path(potential)))
        return _called(locate(potential))
    if isinstance(potential, (Potential, Ensemble)):
        return None
    if not isinstance(potential, (list, tuple)):
        raise TypeError(f"potential must be a Potential or a path, got {type(potential).__name__}")
    paths = [part for part in potential if isinstance(part, (str, Path))]
    return tuple(_called(locate(path)) for path in paths) if len(paths) == len(potential) else None


def _called(file: Path) -> str:
    return file.stem if file in shipped().values() else str(file.resolve())


def _choose(asked: str, settings: ForceSettings) -> tuple[str, str]:
    """The transport, and why it is that one. Raises ImportError for one that is asked for and cannot be had."""
    if asked == "python":
        return asked, "asked for"
    reason = (
        why_not_torch(settings.device.startswith("cuda"))
        if asked == "torch"
        else why_not_native(settings, asked == "native")
    )
    if asked in ("native", "torch"):
        if reason is not None:
            raise ImportError(f"transport {asked!r} cannot be used: {reason}")
        return asked, "asked for"
    if reason is None:
        return "native", "the fastest, and it works here"
    log.info("OpenMM calls Python at each step (transport 'python'): %s", reason)
    return "python", reason
