"""Adding a potential to an openmm.System: checks, choice of a transport, and the object that describes the force."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openmm
from openmm import app, unit

from torchmdx.checkpoints.locate import files_at, locate
from torchmdx.checkpoints.potentials import shipped
from torchmdx.checkpoints.prepare import PotentialSource, chosen_head, prepare_potential
from torchmdx.models.coulomb_cutoff import takes_charges
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.openmm.atoms import Region, checked_atoms, elements_of
from torchmdx.openmm.energy_offset import offset_in_ev
from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.link_atoms import HYDROGEN, LinkAtom, checked_links
from torchmdx.openmm.native.one_context import share_or_warn
from torchmdx.openmm.overlaps import warn_of_overlaps
from torchmdx.openmm.periodic_box import choose_box
from torchmdx.openmm.potential_force import PotentialForce
from torchmdx.openmm.region_charge import AUTO, charge_of
from torchmdx.openmm.settings import ForceSettings, hash_of
from torchmdx.openmm.surroundings import Surroundings
from torchmdx.openmm.transport_native import make_native_force, why_not_native
from torchmdx.openmm.transport_python import make_python_force
from torchmdx.openmm.transport_torch import make_torch_force, why_not_torch
from torchmdx.step.divided_step import chosen_devices

log = logging.getLogger(__name__)

TRANSPORTS = ("auto", "native", "torch", "python")
_MAKERS: dict[str, Callable[[ForceEvaluator, openmm.System], openmm.Force]] = {
    "native": make_native_force,
    "torch": make_torch_force,
    "python": make_python_force,
}


def add_potential(
    system: openmm.System,
    topology: app.Topology,
    potential: PotentialSource = None,
    atoms: Region | None = None,
    *,
    charge: float | unit.Quantity | str = AUTO,
    transport: str = "auto",
    mode: str = "auto",
    precision: str = "float32",
    device: str | None = None,
    devices: Sequence[str] | None = None,
    skin: float = 0.0,
    audit_every: int = 0,
    force_group: int = 0,
    periodic: bool | None = None,
    scale_parameter: str | None = None,
    max_force_spread: float | None = None,
    spread_file: str | Path | None = None,
    uncertainty: bool = False,
    max_uncertainty: float | None = None,
    energy_offset: float | unit.Quantity | str = 0.0,
    link_atoms: Sequence[LinkAtom] = (),
    surroundings: Surroundings | None = None,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
    name: str = "torchmdx",
) -> PotentialForce:
    """Adds the energy of a potential, for all atoms or some, to an OpenMM system. Other forces are not changed.

    Warns of a force field or the same potential for these atoms, and at the first evaluation of `atoms` that see their
    own images.

    Args:
        potential: As for `torchmdx.Calculator`; None for the default potential.
        atoms: The atoms that it acts on, None for all: indices, Atoms, Residues, names of residues, or a mask.
        charge: Total charge of these atoms, e, or with a unit; "auto": the sum of their MM charges, 0 if there are
            none.
        mode, precision, skin: As for CapturedStep.
        audit_every: Evaluations between audits, 0: none; a failure raises.
        device: "cpu", "cuda", "cuda:1"; None takes a GPU if one is available.
        devices: Several that share the atoms, as for `torchmdx.DividedStep`; they need the transport "python".
        transport: How positions and forces are passed between OpenMM and torch; "auto" takes the fastest available.
        periodic: Whether atoms interact with periodic images; None: if the system, or else the topology, has a box.
        scale_parameter: A global parameter of the Context, by default 1, that multiplies energy and forces.
        max_force_spread, spread_file: For an ensemble, as for `torchmdx.Calculator`; the error ends the step.
        uncertainty: Compute the uncertainties that a single potential knows, for `PotentialForce.uncertainty`.
        max_uncertainty: Of the energy of an atom, eV; the error ends the step. Implies `uncertainty`.
        energy_offset: kJ/mol, or with a unit, subtracted from the energy before scaling; "atoms": its reference
            energies; "total": minus those that a checkpoint of torchmd-net contains but disables (`remove_ref_energy`).
        link_atoms, surroundings: Hydrogens at bonds that `atoms` cut, and fixed charges of all other particles, with
            which the potential's own charges interact, as `create_mixed_system` makes them.
        coulomb_cutoff, coulomb, coulomb_accuracy: Treatment of the Coulomb energy in a periodic box, as for
            `torchmdx.load`.
        head: Of a file with several; None: its default.

    Raises:
        ValueError: For a missing transport.
        TypeError: For a missing transport.
        ImportError: For a missing transport.
    """
    require_known(transport, force_group)
    potential = chosen_head(potential, head)
    chosen, (is_periodic, missing_box) = checked_atoms(system, topology, atoms), choose_box(system, topology, periodic)
    links, checkpoint = checked_links(link_atoms, chosen, system.getNumParticles()), checkpoint_of(potential)
    numbers = elements_of(topology, chosen) + (HYDROGEN,) * len(links)
    first, several = chosen_devices(device, devices, mode)
    settings = ForceSettings(
        numbers, chosen, system.getNumParticles(), charge_of(system, chosen, charge), is_periodic, precision, mode,
        str(first), skin, audit_every, scale_parameter, checkpoint, hash_of(checkpoint), max_force_spread,
        spread_file if spread_file is None else str(spread_file), 0.0, links, surroundings, tuple(several or ()),
        coulomb_cutoff, coulomb, coulomb_accuracy, uncertainty, max_uncertainty,
    )  # fmt: skip
    warn_of_overlaps(system, evaluator := make_evaluator(potential, settings, energy_offset))
    return insert(system, evaluator, transport, missing_box, force_group, name)


def require_known(transport: str, force_group: int) -> None:
    """Raises ValueError for an unknown transport and a force group that OpenMM does not have."""
    if transport not in TRANSPORTS:
        raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, got {transport!r}")
    if not 0 <= force_group <= 31:
        raise ValueError(f"force_group must be between 0 and 31, got {force_group}")


def make_evaluator(potential: PotentialSource, settings: ForceSettings, energy_offset: Any) -> ForceEvaluator:
    """What evaluates a potential with these settings. Raises ValueError for one that takes charges."""
    prepared = prepare_potential(potential, settings.dtype, settings.device, *settings.coulomb_treatment)
    if takes_charges(prepared):
        raise ValueError(
            "the potential must predict its charges or have none: OpenMM Systems have no partial charges for "
            f"potentials, but {_title(prepared)} takes them as given"
        )
    offset = offset_in_ev(energy_offset, prepared, settings.numbers, potential)
    evaluator = ForceEvaluator(replace(settings, energy_offset=offset), prepared)
    if isinstance(potential, (Potential, Ensemble)):
        evaluator.source = weakref.ref(potential)
    return evaluator


def _title(potential: Potential | Ensemble) -> str:
    return members_of(potential)[0].card.title


def insert(
    system: openmm.System, evaluator: ForceEvaluator, transport: str, missing_box: Any, force_group: int, name: str
) -> PotentialForce:
    """Adds the force of an evaluator to a system. missing_box: to set as the default one of the system."""
    settings = evaluator.settings
    if settings.device.startswith("cuda"):
        share_or_warn()  # before any Context is created; every transport becomes faster
    kind, evaluator.why = _choose(transport, settings)
    force = _MAKERS[kind](evaluator, system)
    if missing_box is not None:
        system.setDefaultPeriodicBoxVectors(*missing_box)
    force.setForceGroup(force_group)
    force.setName(name)
    return PotentialForce(force, kind, evaluator)


def checkpoint_of(potential: PotentialSource) -> str | tuple[str, ...] | None:
    """The file of a potential, or those of several; None if any is given in memory.

    A potential that is part of torchmdx is given by its name, which is valid on any machine.
    """
    if potential is None or isinstance(potential, (str, Path)):
        files = tuple(map(_name_or_path, files_at(potential)))
        return files if len(files) > 1 else files[0]
    if isinstance(potential, (Potential, Ensemble)):
        return None
    if not isinstance(potential, (list, tuple)):
        raise TypeError(f"potential must be a Potential or a path, got {type(potential).__name__}")
    paths = [part for part in potential if isinstance(part, (str, Path))]
    return tuple(_name_or_path(locate(path)) for path in paths) if len(paths) == len(potential) else None


def _name_or_path(file: Path) -> str:
    return file.stem if file in shipped().values() else str(file.resolve())


def _choose(asked: str, settings: ForceSettings) -> tuple[str, str]:
    """The transport, and the reason for it. Raises ImportError if the requested one cannot be used."""
    if asked == "python":
        return asked, "requested"
    if settings.devices:
        if asked != "auto":
            raise ImportError(f"transport {asked!r} cannot be used: several devices need the transport 'python'")
        return "python", "several devices share the atoms"
    reason = (
        why_not_torch(settings.device.startswith("cuda"))
        if asked == "torch"
        else why_not_native(settings, asked == "native")
    )
    if asked in ("native", "torch"):
        if reason is not None:
            raise ImportError(f"transport {asked!r} cannot be used: {reason}")
        return asked, "requested"
    if reason is None:
        return "native", "the fastest, and it works here"
    log.info("OpenMM calls Python at each step (transport 'python'): %s", reason)
    return "python", reason
