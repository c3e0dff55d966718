"""Audits: comparison of a step's results with the exact model."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchmdx.blocks import BlockedTensorNet, BlockedTensorNet2
from torchmdx.domain import Domain
from torchmdx.engines.choose import engine_for
from torchmdx.evaluate import evaluate, require_apart
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import Edges
from torchmdx.step.buffer_storage import FIRST_BAD, NOT_FINITE
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.results import NonFiniteError
from torchmdx.system import Batch

# Of larger structures only a part is compared with the exact model.
MOST_ATOMS = 600
# Largest relative force error. float32 rounding alone gives about 1e-6 for molecules. Where forces cancel, as in a
# crystal at equilibrium, the relative error is large without being significant, hence the smallest norm in eV/Å.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "half": 2e-3, "tf32": 2e-2, "bfloat16": 1e-1}
LEAST_FORCE = 1e-2
# The same tolerances for energies are in units of eV per atom, plus eV per eV/Å of force on it: relative to the total
# energy, reference energies of hundreds of eV would hide errors.
ENERGY_SCALE = 1.0


@dataclass(frozen=True)
class Verdict:
    """error: relative force error against the exact model, None if not computed. reason: why it failed, else None."""

    error: float | None
    reason: str | None


def audit(potential: Potential | Ensemble, structure: Batch, found: Tensor, precision: str) -> float:
    """Relative force error of the forces `found` for a structure, against the exact model in float64.

    found: `StepBuffers.compared()`. For an ensemble the spread of forces is compared with their mean, so that every
    member counts. Of a structure too large for the exact model a cluster of atoms is compared, evaluated by an engine
    of the same kind.
    """
    part, atoms, is_whole = sample(structure)
    chosen = found.index_select(0, atoms) if is_whole else _evaluate_part(potential, part, structure, precision)
    return relative_error(chosen, exact_results(potential, part)[1])


def structure_of(batch: Batch, buffers: StepBuffers) -> Batch:
    """A copy of the structure in the input buffers of a step that evaluates `batch`, on the model's device."""
    inputs = buffers.inputs
    return replace(batch, positions=inputs["positions"].clone(), cell=inputs["cell"].clone())


def judge_copies(
    potential: Potential | Ensemble, precision: str, structure: Batch, compared: Tensor, energy: Tensor
) -> Verdict:
    """Audits copies of the results of a step for a structure.

    compared: copy of `buffers.compared()`. energy [S]: compared if the whole structure is small enough.
    """
    allowed = TOLERANCES[precision]
    part, atoms, is_whole = sample(structure)
    found = compared.index_select(0, atoms) if is_whole else _evaluate_part(potential, part, structure, precision)
    exact_energy, exact = exact_results(potential, part)
    verdict = _verdict(relative_error(found, exact), allowed)
    if verdict.reason is not None or not is_whole or part.num_systems < structure.num_systems:
        return verdict
    scale = ENERGY_SCALE * (len(atoms) + float(torch.linalg.vector_norm(exact[:, :3], dim=1).sum()))
    difference = float((energy.to(exact_energy) - exact_energy).abs().sum())
    if difference <= allowed * scale:
        return verdict
    limit = f"{allowed * scale:.0e} eV"
    text = f"its energy differs from the exact model's by {difference:.1e} eV (at most {limit} is allowed)"
    return Verdict(verdict.error, text)


def require_finite(flags: Any, evaluation: int, edges: Edges, buffers: StepBuffers, ordered: Batch) -> None:
    """Raises NonFiniteError for results that are not finite; AtomsTogether if two atoms coincide."""
    if not flags[NOT_FINITE]:
        return
    # The usual cause: two atoms at the same place. Engines see coordinates before rounding, too.
    vectors = edges.vectors(buffers.places, buffers.box, ordered.system_index)
    require_apart(edges, vectors, buffers.order)
    raise NonFiniteError(
        f"evaluation {evaluation}: positions, energy or forces of {int(flags[NOT_FINITE])} atoms are not "
        f"finite, the first of them atom {int(flags[FIRST_BAD])}"
    )


def judge(
    potential: Potential | Ensemble, batch: Batch, buffers: StepBuffers, precision: str, launched: Tensor | None = None
) -> Verdict:
    """Audits the results in the buffers of a step that evaluates `batch` at the buffers' inputs.

    launched: `buffers.compared()` after an eager run, which a replay is compared with for structures of any size.
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


def _evaluate_part(potential: Potential | Ensemble, part: Batch, structure: Batch, precision: str) -> Tensor:
    """Forces on a part of a structure, by the kernels that evaluate the structure: no others need to be compiled."""
    batch = part.to(dtype=potential.dtype)
    batch = replace(batch, positions=(part.positions - part.positions.mean(0)).to(potential.dtype))
    engine, _ = engine_for(potential, batch, stress=False, precision=precision, like=structure)
    edges = brute_force(batch, potential.search_cutoff(batch))
    engine.reserve(edges.capacity)
    outputs = engine.run(part.positions - part.positions.mean(0), part.cell, edges)
    return _columns(outputs.forces, outputs.force_spread)


def relative_error(forces: Tensor, exact: Tensor) -> float:
    """|forces - exact| / |exact|, norms over all atoms; the denominator is at least LEAST_FORCE per atom (RMS)."""
    if exact.numel() == 0:
        return 0.0
    floor = LEAST_FORCE * exact.shape[0] ** 0.5
    return float((forces.double() - exact).norm() / exact.norm().clamp(min=floor))


def sample(batch: Batch) -> tuple[Batch, Tensor, bool]:
    """A part of a batch small enough for the exact model: (part, its atoms [M], whether it consists of whole systems).

    The first systems of the batch, as many as fit: their forces can be compared directly. If even the first system is
    too large, the atoms closest to one of its atoms, as a molecule, which the fast path has to evaluate separately.
    """
    counts = batch.counts().tolist()
    whole = 0
    while whole < len(counts) and sum(counts[: whole + 1]) <= MOST_ATOMS:
        whole += 1
    if whole and isinstance(batch, Domain):
        return batch, torch.arange(batch.num_atoms, device=batch.positions.device), True
    if whole:
        atoms = torch.arange(sum(counts[:whole]), device=batch.positions.device)
        return _select(batch, atoms, whole), atoms, True
    first = batch.positions[: counts[0]]
    distance = torch.linalg.vector_norm(first - first[len(first) // 2], dim=-1)
    atoms = distance.argsort()[:MOST_ATOMS].sort().values
    part = _select(batch, atoms, 1)
    return replace(part, cell=torch.zeros_like(part.cell), pbc=torch.zeros_like(part.pbc)), atoms, False


def exact_results(potential: Potential | Ensemble, batch: Batch) -> tuple[Tensor, Tensor]:
    """Energy [S] and forces [N,3] of the exact model in float64; for an ensemble [N,4], with the force spread.

    In blocks, because the derivative takes 6 MB per atom otherwise, more than the fast path of a large structure.
    """
    exact = copy.deepcopy(potential).double()
    blocked = [_in_blocks(member) for member in (exact if isinstance(exact, Ensemble) else [exact])]
    whole = Ensemble(blocked, exact.names) if isinstance(exact, Ensemble) else blocked[0]
    result = evaluate(whole, batch.to(dtype=torch.float64))
    assert result.forces is not None
    return result.energy, _columns(result.forces, result.force_spread)


def _in_blocks(potential: Potential) -> Potential:
    network = potential.network
    if type(network) is TensorNet:
        return potential.with_network(BlockedTensorNet(network))
    return potential.with_network(BlockedTensorNet2(network)) if type(network) is TensorNet2 else potential


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
