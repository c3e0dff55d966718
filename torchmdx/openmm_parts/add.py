"""Adding a potential to an openmm.System: checks, the choice of a transport, and what is known of it afterwards."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import openmm
from openmm import app

from torchmdx.checkpoint import load, located
from torchmdx.models.potential import Potential
from torchmdx.openmm_parts.atoms import checked_atoms, elements_of, is_periodic
from torchmdx.openmm_parts.evaluator import Evaluator
from torchmdx.openmm_parts.native_transport import make_native_force, why_not_native
from torchmdx.openmm_parts.python_transport import make_python_force
from torchmdx.openmm_parts.settings import ForceSettings, file_hash, resolved_device
from torchmdx.openmm_parts.torch_transport import make_torch_force, why_not_torch
from torchmdx.openmm_plugin.one_context import share_or_tell
from torchmdx.potentials import shipped
from torchmdx.step_report import StepReport
from torchmdx.system import checked_charge

log = logging.getLogger(__name__)

TRANSPORTS = ("auto", "native", "torch", "python")


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


def add_potential(
    system: openmm.System,
    topology: app.Topology,
    potential: Potential | str | Path | None = None,
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
    name: str = "torchmdx",
) -> PotentialForce:
    """Adds the energy of a potential, for all atoms or some, to an OpenMM system.

    potential: a Potential, a checkpoint's path, or a name; None for the potential that torchmdx comes with.
    atoms: indices of the particles that the potential sees, None for all; nothing else of the system is touched.
    charge: total charge of these atoms, e. mode, precision, skin, audit_every: as for CapturedStep.
    device: where torch works: "cpu", "cuda", "cuda:1"; None takes a GPU if there is one.
    transport: how positions and forces travel between OpenMM and torch; "auto" takes the fastest that works here.
    periodic: whether atoms see periodic images; None: if system or topology has a box.
    scale_parameter: a global parameter of the Context, 1 at first, that multiplies energy and forces.

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
        scale_parameter, checkpoint, None if checkpoint is None else file_hash(checkpoint),
    )  # fmt: skip
    evaluator = Evaluator(settings, _potential(potential, settings))
    if settings.device.startswith("cuda"):
        share_or_tell()  # before any Context: every transport gains
    kind, why = _choose(transport, settings)
    makers: dict[str, Callable[[Evaluator, openmm.System], openmm.Force]] = {
        "native": make_native_force,
        "torch": make_torch_force,
        "python": make_python_force,
    }
    box = topology.getPeriodicBoxVectors()
    if settings.periodic and box is not None and not system.usesPeriodicBoundaryConditions():
        # Nothing in the system has used its box so far: it may still be OpenMM's default of 2 nm.
        system.setDefaultPeriodicBoxVectors(*box)
    force = makers[kind](evaluator, system)
    force.setForceGroup(force_group)
    force.setName(name)
    return PotentialForce(force, kind, why, evaluator)


def _checkpoint_of(potential: Potential | str | Path | None) -> str | None:
    """What a saved force calls its checkpoint: a path, or the name of one that comes with torchmdx on any machine."""
    if isinstance(potential, Potential):
        return None
    if not (potential is None or isinstance(potential, str | Path)):
        raise TypeError(f"potential must be a Potential or a path, got {type(potential).__name__}")
    file = located(potential)
    return file.stem if file in shipped().values() else str(file.resolve())


def _potential(potential: Potential | str | Path | None, settings: ForceSettings) -> Potential:
    if isinstance(potential, Potential):  # copied: the caller's stays as it is
        moved = copy.deepcopy(potential).to(device=settings.device, dtype=settings.dtype)
        return moved.eval().requires_grad_(False)
    return load(potential, dtype=settings.dtype, device=settings.device)


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
