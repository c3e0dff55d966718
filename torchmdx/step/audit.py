"""The check that the fast path gives the numbers of the exact model."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.choose import engine_for
from torchmdx.evaluate import evaluate, require_apart
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import Edges
from torchmdx.step.buffer_storage import FIRST_BAD, NOT_FINITE
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.results import NonFiniteError
from torchmdx.system import Batch

# The exact model in float64 needs about 6 MB an atom; larger structures are judged by a part of them.
MOST_ATOMS = 600
# Relative force error that refuses a graph. float32 rounding alone is some 1e-6 on molecules; forces that cancel
# (a crystal at rest) make it large without harm, hence the floor in eV/Å that counts as force.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "tf32": 2e-2, "bfloat16": 1e-1}
LEAST_FORCE = 1e-2
# What the same tolerances allow of energies: eV for each atom, and for each eV/Å of force on it, so that reference
# energies of hundreds of eV hide nothing.
ENERGY_SCALE = 1.0


@dataclass(frozen=True)
class Verdict:
    """error: relative force error against the exact model, None if it was not needed. reason: None if all is well."""

    error: float | None
    reason: str | None


def audit(potential: Potential | Ensemble, structure: Batch, found: Tensor, precision: str) -> float:
    """Relative force error of the forces `found` for a structure, against the exact model in float64.

    found: `StepBuffers.compared()`. Of an ensemble, the spread of forces is compared along with their mean, so that
    every member counts. A structure too large for the exact model is judged by a cluster of its atoms, evaluated anew
    by an engine of the same kind.
    """
    part, atoms, as_it_is = sample(structure)
    chosen = found.index_select(0, atoms) if as_it_is else _evaluate_anew(potential, part, precision)
    return relative_error(chosen, exact_results(potential, part)[1])


def structure_of(batch: Batch, buffers: StepBuffers) -> Batch:
    """A copy of the structure in the input buffers of a step that evaluates `batch`, on the model's device."""
    inputs = buffers.inputs
    return replace(batch, positions=inputs["positions"].clone(), cell=inputs["cell"].clone())


def judge_copies(
    potential: Potential | Ensemble, precision: str, structure: Batch, compared: Tensor, energy: Tensor
) -> Verdict:
    """What speaks against results that a step gave earlier for a structure.

    compared: copy of `buffers.compared()`. energy [S]: compared where the whole structure fits the exact model.
    """
    allowed = TOLERANCES[precision]
    part, atoms, as_it_is = sample(structure)
    found = compared.index_select(0, atoms) if as_it_is else _evaluate_anew(potential, part, precision)
    exact_energy, exact = exact_results(potential, part)
    verdict = _verdict(relative_error(found, exact), allowed)
    if verdict.reason is not None or not as_it_is or part.num_systems < structure.num_systems:
        return verdict
    scale = ENERGY_SCALE * (len(atoms) + float(torch.linalg.vector_norm(exact[:, :3], dim=1).sum()))
    difference = float((energy.to(exact_energy) - exact_energy).abs().sum())
    if difference <= allowed * scale:
        return verdict
    limit = f"{allowed * scale:.0e} eV"
    text = f"its energy differs from the exact model's by {difference:.1e} eV (at most {limit} is allowed)"
    return Verdict(verdict.error, text)


def require_finite(flags: Any, evaluation: int, edges: Edges, buffers: StepBuffers, ordered: Batch) -> None:
    """Raises for what is not finite: ValueError that names two atoms at one place, else NonFiniteError."""
    if not flags[NOT_FINITE]:
        return
    # Two atoms at one place are the usual cause, and have an error of their own.
    vectors = edges.vectors(buffers.positions, buffers.cell, ordered.system_index)
    require_apart(edges, vectors, buffers.order)
    raise NonFiniteError(
        f"evaluation {evaluation}: positions, energy or forces of {int(flags[NOT_FINITE])} atoms are not "
        f"finite, the first of them atom {int(flags[FIRST_BAD])}"
    )


def judge(
    potential: Potential | Ensemble, batch: Batch, buffers: StepBuffers, precision: str, launched: Tensor | None = None
) -> Verdict:
    """What speaks against the results in the buffers of a step, which evaluates `batch` at the buffers' inputs.

    launched: `buffers.compared()` after launching the kernels one by one, to compare a replay with, whatever its size.
    """
    allowed, found = TOLERANCES[precision], buffers.compared()
    if launched is not None:
        difference = relative_error(found, launched)
        if not difference <= allowed:
            return Verdict(None, f"its forces differ by {difference:.1e} (relative) between a replay and a launch")
    return _verdict(audit(potential, structure_of(batch, buffers), found, precision), allowed)


def _verdict(error: float, allowed: float) -> Verdict:
    if error <= allowed:
        return Verdict(error, None)
    text = f"its forces differ from the exact model's by {error:.1e} (relative; at most {allowed:.0e} is allowed)"
    return Verdict(error, text)


def _evaluate_anew(potential: Potential | Ensemble, part: Batch, precision: str) -> Tensor:
    batch = part.to(dtype=potential.dtype)
    batch = replace(batch, positions=(part.positions - part.positions.mean(0)).to(potential.dtype))
    engine, _ = engine_for(potential, batch, stress=False, precision=precision)
    edges = brute_force(batch, potential.search_cutoff(batch))
    engine.reserve(edges.capacity)
    outputs = engine.run(part.positions - part.positions.mean(0), part.cell, edges)
    return _columns(outputs.forces, outputs.force_spread)


def relative_error(forces: Tensor, exact: Tensor) -> float:
    """|forces - exact| / |exact|, norms over all atoms; forces below LEAST_FORCE on average count as LEAST_FORCE."""
    if exact.numel() == 0:
        return 0.0
    floor = LEAST_FORCE * exact.shape[0] ** 0.5
    return float((forces.double() - exact).norm() / exact.norm().clamp(min=floor))


def sample(batch: Batch) -> tuple[Batch, Tensor, bool]:
    """Part of a batch small enough for the exact model: (batch, its atoms [M], whether it stands for itself).

    Whole systems from the first on, while they fit: their forces can be compared as they are. If not even the first
    fits, the atoms nearest to one of its atoms, as a molecule: there the fast path has to be run on it anew.
    """
    counts = batch.counts().tolist()
    whole = 0
    while whole < len(counts) and sum(counts[: whole + 1]) <= MOST_ATOMS:
        whole += 1
    if whole:
        atoms = torch.arange(sum(counts[:whole]), device=batch.positions.device)
        return _select(batch, atoms, whole), atoms, True
    first = batch.positions[: counts[0]]
    distance = torch.linalg.vector_norm(first - first[len(first) // 2], dim=-1)
    atoms = distance.argsort()[:MOST_ATOMS].sort().values
    part = _select(batch, atoms, 1)
    return replace(part, cell=torch.zeros_like(part.cell), pbc=torch.zeros_like(part.pbc)), atoms, False


def exact_results(potential: Potential | Ensemble, batch: Batch) -> tuple[Tensor, Tensor]:
    """Energy [S] and forces [N,3] of the exact model in float64; of an ensemble [N,4], their spread with them."""
    result = evaluate(copy.deepcopy(potential).double(), batch.to(dtype=torch.float64))
    assert result.forces is not None
    return result.energy, _columns(result.forces, result.force_spread)


def _columns(forces: Tensor, spread: Tensor | None) -> Tensor:
    """A copy of the forces [N,3], float64, with their spread as a fourth column if there is one."""
    forces = forces.double()
    return forces.clone() if spread is None else torch.cat([forces, spread[:, None]], 1)


def _select(batch: Batch, atoms: Tensor, num_systems: int) -> Batch:
    return Batch(
        positions=batch.positions[atoms],
        atomic_numbers=batch.atomic_numbers[atoms],
        system_index=batch.system_index[atoms],
        cell=batch.cell[:num_systems],
        pbc=batch.pbc[:num_systems],
        charge=batch.charge[:num_systems],
        partial_charges=None if batch.partial_charges is None else batch.partial_charges[atoms],
    )
