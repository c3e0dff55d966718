"""ML/MM systems with several regions, each with a potential, a charge and a λ of its own, or shared ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import openmm

from torchmdx.openmm.atoms import Region, checked_atoms
from torchmdx.openmm.mixed import create_mixed_system
from torchmdx.openmm.mixed_cuts import LinkRequest
from torchmdx.openmm.region_charge import AUTO

if TYPE_CHECKING:
    from openmm import app, unit

    from torchmdx.checkpoints.prepare import PotentialSource


@dataclass(frozen=True)
class MixedRegion:
    """A region for `create_mixed_regions`: arguments of `create_mixed_system`, by the same names.

    Attributes:
        interpolate: Name of a global parameter λ; regions with the same name share it. None: the region has none.
    """

    atoms: Region
    potential: PotentialSource = None
    charge: float | unit.Quantity | str = AUTO
    interpolate: str | None = None
    energy_offset: float | unit.Quantity | str = 0.0
    link_atoms: LinkRequest = False
    long_range: bool | None = None
    coulomb_cutoff: float | None = None
    coulomb: str | None = None
    coulomb_accuracy: float | None = None
    head: str | None = None
    name: str = "torchmdx"


def create_mixed_regions(
    system: openmm.System,
    topology: app.Topology,
    regions: Iterable[MixedRegion],
    *,
    remove_constraints: bool = True,
    keep: Iterable[str] = (),
    replace: Iterable[str] = (),
    transport: str = "auto",
    mode: str = "auto",
    precision: str = "float32",
    device: str | None = None,
    skin: float = 0.0,
    audit_every: int = 0,
    force_group: int = 0,
    periodic: bool | None = None,
) -> openmm.System:
    """A copy of an MM system with several regions; regions interact with each other through the force field.

    The options are those of `create_mixed_system`. `find` returns the potentials in the order of the regions.

    Raises what that function raises; TypeError for something else than regions, and ValueError for none, and for
    regions that share atoms.
    """
    chosen = _disjoint(system, topology, regions)
    keep, replace = ([names] if isinstance(names, str) else list(names) for names in (keep, replace))
    mixed = system
    for region in chosen:
        mixed = create_mixed_system(
            mixed, topology, **vars(region), remove_constraints=remove_constraints, keep=keep, replace=replace,
            transport=transport, mode=mode, precision=precision, device=device, skin=skin, audit_every=audit_every,
            force_group=force_group, periodic=periodic,
        )  # fmt: skip
    return mixed


def _disjoint(system: openmm.System, topology: app.Topology, regions: Iterable[MixedRegion]) -> list[MixedRegion]:
    chosen = list(regions)
    if not chosen:
        raise ValueError("regions must have at least one MixedRegion, got none")
    owners: dict[int, int] = {}
    for number, region in enumerate(chosen):
        if not isinstance(region, MixedRegion):
            raise TypeError(f"regions must be MixedRegions, got {type(region).__name__}")
        for index in checked_atoms(system, topology, region.atoms) or ():
            if index in owners:
                raise ValueError(
                    f"regions must not share atoms, got atom {index} in regions {owners[index]} and {number}"
                )
            owners[index] = number
    return chosen
