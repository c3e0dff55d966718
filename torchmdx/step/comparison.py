"""Comparison of the results of a step with those of another evaluation, within the tolerance of a precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.structures.cell import volume
from torchmdx.structures.system import Batch

# Largest relative force error. float32 rounding alone gives about 1e-6 for molecules. Where forces cancel, as in a
# crystal at equilibrium, the relative error is large without being significant, hence the smallest norm in eV/Å.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
LEAST_FORCE = 1e-2
# The same tolerances for energies are in units of eV per atom, plus eV per eV/Å of force on it: relative to the total
# energy, reference energies of hundreds of eV would hide errors. For virials, also per eV of virial.
ENERGY_SCALE = 1.0
# Forces on a few atoms may be this many times further off than those on many, and energies of atoms than their sum.
OF_FEW_ATOMS, OF_ATOMS = 3.0, 5.0
# Uncertainties, relative to themselves: rare directions of the last layer are multiplied by large numbers.
OF_UNCERTAINTIES = 100.0
# Sums of forces may be this many times the tolerance, relative to the norm of the forces of all atoms.
SUM_OF_FORCES = 10.0

Results = Mapping[str, Tensor]


@dataclass(frozen=True)
class Comparison:
    """error: relative force error. reasons: what differs by more than is allowed, and by how much."""

    error: float
    reasons: tuple[str, ...]


def compare_systems(found: Results, exact: Results, batch: Batch, allowed: float, other: str) -> Comparison:
    """Compares the results of whole systems: every quantity that both have.

    Forces, with the spread of an ensemble's, by the norm of all; energies and stress of each system, stress as the
    virial; energies of atoms by their root mean square. other: whose results `exact` are, in the reasons.
    """
    error, reasons = _forces(found, exact, allowed, other)
    scale = _energy_scale(exact["forces"], batch)
    for name in ("energy", "energy_spread"):
        if name in found and name in exact:
            title = f"its {name.replace('_', ' ')} differs from {other}"
            reasons += _excess((found[name] - exact[name]).abs(), allowed * scale, title, "eV")
    if "energies" in found and "energies" in exact:
        reasons += _energies(found["energies"], exact["energies"], exact["forces"], allowed, other)
    if "energy_uncertainty" in found and "energy_uncertainty" in exact:
        reasons += _uncertainties(found, exact, allowed, scale, other)
    if "stress" in found and "stress" in exact:
        reasons += _stress(found["stress"], exact["stress"], batch, allowed, scale, other)
    return Comparison(error, reasons)


def compare_atoms(found: Results, exact: Results, allowed: float, other: str) -> Comparison:
    """Compares energies of atoms [n] and forces of the first [m] of them; the spread of forces if both have it.

    Args:
        found: Results [n]; exact: energies [n], forces [m,3].
    """
    count = len(exact["forces"])
    few = {name: value[:count] for name, value in found.items()}
    error, reasons = _forces(few, exact, allowed * OF_FEW_ATOMS, other)
    if "energies" in found:
        reasons += _energies(found["energies"], exact["energies"], exact["forces"], allowed, other)
    return Comparison(error, reasons)


def compare_sums(found: Results, batch: Batch, allowed: float, *, alone: bool = True) -> tuple[str, ...]:
    """How results of any system contradict each other: forces on atoms add up to zero, energies of atoms to its own.

    Args:
        alone: False: something outside acts on the atoms too.
    """
    forces, index = found["forces"], batch.system_index
    sums = forces.new_zeros(batch.num_systems, 3).index_add(0, index, forces)
    squares = forces.new_zeros(batch.num_systems).index_add(0, index, (forces**2).sum(-1))
    norms = torch.maximum(squares, LEAST_FORCE**2 * batch.counts()).sqrt()
    limits = allowed * SUM_OF_FORCES * norms
    title, lengths = "the sum of its forces differs from zero", torch.linalg.vector_norm(sums, dim=-1)
    reasons = _excess(lengths, limits, title, "eV/Å") if alone else ()
    if "energies" in found:
        total = torch.zeros_like(found["energy"]).index_add(0, index, found["energies"])
        title = "its energy differs from the sum of its atoms'"
        reasons += _excess((found["energy"] - total).abs(), allowed * _energy_scale(forces, batch), title, "eV")
    return reasons


def relative_error(forces: Tensor, exact: Tensor) -> float:
    """|forces - exact| / |exact|, norms over all atoms; the denominator is at least LEAST_FORCE per atom (RMS)."""
    if exact.numel() == 0:
        return 0.0
    floor = LEAST_FORCE * exact.shape[0] ** 0.5
    return float((forces.double() - exact).norm() / exact.norm().clamp(min=floor))


def _forces(found: Results, exact: Results, allowed: float, other: str) -> tuple[float, tuple[str, ...]]:
    """The error of the forces, with their spread as a fourth column so that every member of an ensemble counts."""
    names = [name for name in ("forces", "force_spread") if name in found and name in exact]
    both = ([values[name].reshape(len(values["forces"]), -1) for name in names] for values in (found, exact))
    error = relative_error(*(torch.cat(columns, 1) for columns in both))
    if error <= allowed:
        return error, ()
    return error, (f"its forces differ from {other} by {error:.1e} (relative; at most {allowed:.0e} is allowed)",)


def _energy_scale(forces: Tensor, batch: Batch) -> Tensor:
    """What tolerances of the energies [S] of systems are multiplied by, eV."""
    norms = torch.linalg.vector_norm(forces, dim=-1)
    return ENERGY_SCALE * (batch.counts() + norms.new_zeros(batch.num_systems).index_add(0, batch.system_index, norms))


def _energies(found: Tensor, exact: Tensor, forces: Tensor, allowed: float, other: str) -> tuple[str, ...]:
    """How energies [n] of atoms differ; forces [m,3]: exact ones on some of them."""
    if not len(exact):
        return ()
    limit = allowed * OF_ATOMS * ENERGY_SCALE * (1 + (forces**2).sum(-1).mean().sqrt())
    difference = ((found - exact) ** 2).mean().sqrt()
    return _excess(difference[None], limit[None], f"the energies of its atoms differ from {other}", "eV (RMS)")


def _uncertainties(found: Results, exact: Results, allowed: float, scale: Tensor, other: str) -> tuple[str, ...]:
    """How uncertainties of systems and of atoms differ; their own tolerance allows for the inverse of a covariance."""
    reasons: tuple[str, ...] = ()
    of_atom = (("energy_uncertainty", scale), ("energies_uncertainty", torch.full_like(scale[:1], ENERGY_SCALE)))
    for name, unit in of_atom:
        limits = allowed * (OF_UNCERTAINTIES * exact[name] + unit)
        title = f"its {name.replace('_', ' ')} differs from {other}"
        reasons += _excess((found[name] - exact[name]).abs(), limits, title, "eV") if len(limits) else ()
    return reasons


def _stress(found: Tensor, exact: Tensor, batch: Batch, allowed: float, scale: Tensor, other: str) -> tuple[str, ...]:
    """How stress [S,3,3] differs, in systems that have a volume."""
    size = volume(batch.cell.double())
    virial = torch.where(size[:, None, None] > 0, size[:, None, None] * exact, 0.0).flatten(1)
    difference = torch.where(size[:, None, None] > 0, size[:, None, None] * (found - exact), 0.0).flatten(1)
    limits = allowed * (scale + virial.norm(dim=1))
    return _excess(difference.norm(dim=1), limits, f"its stress times volume differs from {other}", "eV")


def _excess(values: Tensor, limits: Tensor, title: str, unit: str) -> tuple[str, ...]:
    """A reason for the value that is the largest beyond its limit, if any is."""
    beyond = ~(values <= limits)  # NaN is beyond
    if not bool(beyond.any()):
        return ()
    worst = int(torch.where(beyond, torch.nan_to_num(values / limits, torch.inf, torch.inf), -1.0).argmax())
    value, limit = float(values[worst]), float(limits[worst])
    where = f" in system {worst}" if len(values) > 1 else ""
    return (f"{title} by {value:.1e} {unit}{where} (at most {limit:.0e} {unit.split()[0]} is allowed)",)
