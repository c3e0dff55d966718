"""Multiple time steps: the difference of a potential and a fast one as forces of a group of their own."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openmm

from torchmdx.checkpoints.prepare import chosen_head
from torchmdx.openmm.add import checkpoint_of, insert, make_evaluator, require_known
from torchmdx.openmm.potential_force import PotentialForce
from torchmdx.openmm.settings import hash_of
from torchmdx.openmm.transport_python import stay_together
from torchmdx.structures.units import PICOSECOND

if TYPE_CHECKING:
    from torchmdx.checkpoints.prepare import PotentialSource

FAST = "fast"  # the variable of the CustomCVForce


def add_difference(
    system: openmm.System,
    fast: PotentialForce,
    potential: PotentialSource = None,
    *,
    force_group: int = 1,
    transport: str = "auto",
    max_force_spread: float | None = None,
    spread_file: str | Path | None = None,
    uncertainty: bool = False,
    max_uncertainty: float | None = None,
    energy_offset: Any = 0.0,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
    name: str = "torchmdx difference",
) -> PotentialForce:
    """Adds `potential` minus a fast potential that is in the system already, for the same atoms; returns the first.

    The energy of the system is then that with `potential`, and a multiple time step integrator can evaluate the
    difference once in several inner steps::

        from torchmdx.openmm import add_difference, add_potential

        fast = add_potential(system, topology, "fast.safetensors")  # or (fast,) = find(create_mixed_system(...))
        add_difference(system, fast, "model.safetensors")
        integrator = openmm.MTSLangevinIntegrator(300, 1.0, 0.002, [(1, 1), (0, 4)])  # 2 fs outer, 0.5 fs inner

    Atoms, charge, link atoms, surroundings, device and precision are those of the fast potential.

    Args:
        force_group: Of the difference; no other force may be in it.
        transport, max_force_spread, spread_file, uncertainty, max_uncertainty, energy_offset, coulomb_cutoff, coulomb,
            coulomb_accuracy, head: As for `add_potential`.

    Raises:
        ValueError: For a group that is in use, or a fast potential with a scale parameter.
    """
    require_known(transport, force_group)
    if not isinstance(fast, PotentialForce):
        raise TypeError(f"fast must be the PotentialForce of add_potential or find, got {type(fast).__name__}")
    if (parameter := fast.evaluator.settings.scale_parameter) is not None:
        raise ValueError(f"fast must not have a scale_parameter, got {parameter!r}")
    if any(force.getForceGroup() == force_group for force in system.getForces()):
        raise ValueError(f"force_group must be one that no force of the system has, got {force_group}")
    own = fast.evaluator.settings
    moved = not own.periodic and system.usesPeriodicBoundaryConditions()
    if moved and not stay_together(system, own.particles):
        raise ValueError(
            "a difference with periodic=False in a periodic system needs atoms that bonds, constraints or nonbonded "
            "exceptions hold together, because OpenMM wraps positions in a CustomCVForce into the box, molecule by "
            "molecule"
        )
    potential = chosen_head(potential, head)
    checkpoint = checkpoint_of(potential)
    settings = replace(
        own, checkpoint=checkpoint, sha256=hash_of(checkpoint), max_force_spread=max_force_spread, energy_offset=0.0,
        spread_file=None if spread_file is None else str(spread_file), coulomb_cutoff=coulomb_cutoff, coulomb=coulomb,
        coulomb_accuracy=coulomb_accuracy, uncertainty=uncertainty, max_uncertainty=max_uncertainty,
    )  # fmt: skip
    added = insert(system, make_evaluator(potential, settings, energy_offset), transport, None, force_group, name)
    minus = openmm.CustomCVForce(f"-{FAST}")
    minus.addCollectiveVariable(FAST, copy.deepcopy(fast.force))
    minus.setForceGroup(force_group)
    minus.setName(f"{name}: minus {fast.force.getName()}")
    system.addForce(minus)
    return added


def multiple_step_integrator(
    timestep: float, inner: int, *, temperature: float = 0.0, friction: float | None = None, groups: tuple[int, int]
) -> openmm.Integrator:
    """OpenMM's integrator for a fast potential and its difference, in these force groups.

    The kinetic energy is taken after another half of an inner kick, by all forces: velocities at whole steps lack a
    part of that of fast vibrations.

    Args:
        timestep: Of the inner steps, fs.
        friction: 1/ps, at a temperature in K; None for constant energy.
    """
    outer = inner * timestep / PICOSECOND
    if friction is None:
        return openmm.MTSIntegrator(outer, [(groups[1], 1), (groups[0], inner)])
    integrator = openmm.MTSLangevinIntegrator(temperature, friction, outer, [(groups[1], 1), (groups[0], inner)])
    integrator.setKineticEnergyExpression(f"m*u*u/2; u=v+0.5*dt/{inner}*f/m")
    return integrator
