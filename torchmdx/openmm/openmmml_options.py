"""Arguments of openmm-ml's potentials, with their meaning there, as options of `add_potential`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from openmm import unit

from torchmdx.structures.units import KJ_PER_MOL, NANOMETER

# Of `add_potential`, with the same meaning.
SAME = (
    "charge", "transport", "mode", "precision", "device", "skin", "audit_every", "periodic", "max_force_spread",
    "spread_file", "uncertainty", "max_uncertainty", "energy_offset", "coulomb", "coulomb_accuracy", "name",
)  # fmt: skip
# Of openmm-ml's potentials.
TRANSLATED = (
    "coulomb_cutoff", "useCoulombCutoff", "returnEnergyType", "remove_ref_energy", "multiplicity", "max_num_neighbors",
)  # fmt: skip
OPTIONS = (*SAME, *TRANSLATED)
REFUSED = {
    "batch": "a System is one structure",
    "cudaGraphs": "steps are replayed as graphs where possible; mode='eager' evaluates without",
}
_PRECISIONS = {"single": "float32", "double": "float64"}
COULOMB_CUTOFF = 1.2  # nm, openmm-ml's default
LONGEST_CUTOFF = 3.0  # nm; a longer one without a unit is taken for Å by mistake
_LENGTH_SCALE, _ENERGY_SCALE = 0.1, 1 / KJ_PER_MOL
_SAME_UNIT = 1e-4  # relative; openmm-ml's own eV is 96.4916 kJ/mol


def require_units(lengthScale: float = _LENGTH_SCALE, energyScale: float = _ENERGY_SCALE) -> None:
    """Raises ValueError for other units of a model than Å and eV, given as nm and kJ/mol."""
    for name, given, own, unit_name in (
        ("lengthScale", lengthScale, _LENGTH_SCALE, "Å"),
        ("energyScale", energyScale, _ENERGY_SCALE, "eV"),
    ):
        if not math.isclose(given, own, rel_tol=_SAME_UNIT):
            raise ValueError(f"{name} must be that of {unit_name}, {own:.6g}, because potentials are in eV and Å, "
                             f"got {given}")  # fmt: skip


def translated(
    args: Mapping[str, Any], *, is_periodic: bool, has_coulomb: bool, cut_by_default: bool
) -> dict[str, Any]:
    """Options of `add_potential` for arguments of createSystem and createMixedSystem.

    Args:
        is_periodic, has_coulomb: Of the System and of the potential.
        cut_by_default: openmm-ml's default, which truncates the Coulomb energy of periodic systems, instead of the
            potential's own treatment.

    Raises:
        ValueError: For unknown arguments and for values that this potential does not have.
    """
    _require_known(args)
    left = {name: value for name, value in args.items() if name in SAME and (name != "precision" or value is not None)}
    if left.get("device") is not None:
        left["device"] = str(left["device"])  # other potentials of openmm-ml accept a torch.device
    if "precision" in left:
        left["precision"] = _PRECISIONS.get(left["precision"], left["precision"])
    _require_without_effect(args)
    return left | _coulomb(args, is_periodic, has_coulomb, cut_by_default) | _energy(args)


def _require_known(args: Mapping[str, Any]) -> None:
    for name, reason in REFUSED.items():
        if name in args:
            raise ValueError(f"this potential has no option {name}: {reason}")
    unknown = sorted(args.keys() - set(OPTIONS))
    if unknown:
        raise ValueError(f"options of this potential are {', '.join(OPTIONS)}, got {', '.join(unknown)}")


def _require_without_effect(args: Mapping[str, Any]) -> None:
    """Options that are accepted because no other value is possible, or because results do not depend on them."""
    if args.get("multiplicity") not in (None, 1):
        raise ValueError(f"multiplicity must be 1: potentials do not depend on spin, got {args['multiplicity']!r}")
    neighbors = args.get("max_num_neighbors")
    if neighbors is not None and not neighbors >= 1:
        raise ValueError(f"max_num_neighbors must be >= 1, got {neighbors!r}")


def _coulomb(args: Mapping[str, Any], is_periodic: bool, has_coulomb: bool, cut_by_default: bool) -> dict[str, Any]:
    given, cut = args.get("coulomb_cutoff"), args.get("useCoulombCutoff")
    cutoff = None if given is None else _in_angstrom(given)
    if cut is None and cut_by_default and has_coulomb and args.get("coulomb") is None:
        cut = is_periodic
    if cut is None:
        return {} if cutoff is None else {"coulomb_cutoff": cutoff}
    if not isinstance(cut, bool):
        raise ValueError(f"useCoulombCutoff must be True, False or None, got {cut!r}")
    if args.get("coulomb") is not None:
        raise ValueError(f"useCoulombCutoff and coulomb exclude each other, got {cut} and {args['coulomb']!r}")
    if not cut:
        return {"coulomb": "ewald"} if has_coulomb else {}
    kind = "reaction_field" if is_periodic else "reaction_field_everywhere"
    return {"coulomb": kind, "coulomb_cutoff": NANOMETER * COULOMB_CUTOFF if cutoff is None else cutoff}


def _in_angstrom(cutoff: Any) -> float:
    """A cutoff in nm or with a unit. Raises ValueError for one that is not > 0, and for a number that must be in Å."""
    if unit.is_quantity(cutoff):
        return float(cutoff.value_in_unit(unit.angstrom))
    if not 0 < cutoff <= LONGEST_CUTOFF:
        raise ValueError(
            f"coulomb_cutoff must be > 0 and <= {LONGEST_CUTOFF} nm, openmm-ml's unit, or have a unit, got {cutoff}"
        )
    return NANOMETER * float(cutoff)


def _energy(args: Mapping[str, Any]) -> dict[str, Any]:
    """returnEnergyType as in MACE's potential, remove_ref_energy as in torchmd-net's."""
    kind, removed = args.get("returnEnergyType"), args.get("remove_ref_energy")
    if kind not in (None, "energy", "interaction_energy"):
        raise ValueError(f"returnEnergyType must be 'energy' or 'interaction_energy', got {kind!r}")
    if removed not in (None, True, False):
        raise ValueError(f"remove_ref_energy must be True or False, got {removed!r}")
    chosen = {}
    if kind == "interaction_energy":
        chosen["returnEnergyType='interaction_energy'"] = "atoms"
    if removed is False:
        chosen["remove_ref_energy=False"] = "total"
    if args.get("energy_offset"):
        chosen["energy_offset"] = args["energy_offset"]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} exclude each other: each decides which constant the energy contains")
    return dict.fromkeys(["energy_offset"], *chosen.values()) if chosen else {}
