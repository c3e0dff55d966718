"""The Coulomb prior on the CPU, by a kernel in C: energies and all derivatives in one pass over the pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.engines.cpu.build import library
from torchmdx.engines.cpu.threads import EDGES_A_THREAD, addresses, lists_of, run_rows, shares
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.priors.open_pairs import open_systems
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.c_arrays import CPU, address
from torchmdx.structures.system import Batch


@dataclass(frozen=True, eq=False)
class PriorResult:
    """Energies [N], their gradients in positions [N,3] and strain [S,3,3], float64; pull [N,M], that in the charges."""

    energies: Tensor
    slope: Tensor
    virial: Tensor
    pull: Tensor | None

    def __add__(self, other: PriorResult) -> PriorResult:
        pulls = [pull for pull in (self.pull, other.pull) if pull is not None]
        return PriorResult(
            self.energies + other.energies,
            self.slope + other.slope,
            self.virial + other.virial,
            sum(pulls[1:], pulls[0]) if pulls else None,
        )


def available() -> bool:
    """Whether the kernel is there."""
    return library() is not None


def evaluate(
    prior: Coulomb, batch: Batch, edges: Edges, channels: Tensor | None, *, forces: bool = True, stress: bool = True
) -> PriorResult:
    """channels [N,M], float32 or float64: charges that the network predicts; pull is None for given charges."""
    config, predicted = prior.config, prior.config.charges == "predicted"
    charges = channels if predicted else prior.given_charges(batch)
    assert charges is not None, "the registry makes no such prior for other networks"
    wide, atoms = torch.float64, batch.num_atoms
    dtype = prior.weights.dtype
    charges = charges.to(dtype).contiguous()
    lower, upper = config.switch or (0.0, 0.0)
    lengths = [float(config.damping), lower, upper, float(config.switch is not None), float(config.cutoff)]
    settings = torch.tensor([config.strength, *lengths, *prior.field, prior.alpha], dtype=wide, device=CPU)
    is_open = open_systems(batch).int() * int(not config.cut_in_vacuum)
    positions, cell = batch.positions.detach().to(wide).contiguous(), batch.cell.detach().to(wide).contiguous()
    energies, slope, virial = (torch.zeros(atoms, *shape, dtype=wide, device=CPU) for shape in ((), (3,), (6,)))
    pull, weights = torch.zeros_like(charges), prior.weights.contiguous()
    system = batch.system_index.contiguous()
    given = [
        *addresses("coulomb", wide, settings),
        *lists_of(edges, edges.source),
        address("shifts", edges.shifts, torch.int32, shape=(edges.capacity, 3)),
        address("system_index", system, torch.int64, shape=(atoms,)),
        address("open systems", is_open, torch.int32, shape=(batch.num_systems,)),
        *addresses("coulomb", wide, positions, cell),
        *addresses("coulomb", dtype, charges, weights),
        *addresses("coulomb", wide, energies, slope, virial),
        *addresses("coulomb", dtype, pull),
    ]
    run_rows("coulomb", dtype, _bounds(edges, is_open, atoms), charges.shape[1], atoms, *given)
    sums = torch.zeros(batch.num_systems, 6, dtype=wide, device=CPU).index_add(0, system, virial)
    virial = sums[:, [0, 1, 2, 1, 3, 4, 2, 4, 5]].unflatten(1, (3, 3))
    found = PriorResult(energies, slope, virial, pull if predicted else None)
    if prior.splitting is None or not bool(batch.pbc.any()):
        return found
    far = differentiate_reciprocal(prior, batch, charges, edges.overflow, forces=forces, stress=stress)
    return found + PriorResult(far.energies, far.slope, far.virial, far.pull if predicted else None)


def _bounds(edges: Edges, is_open: Tensor, atoms: int) -> list[int]:
    """Ranges of atoms for the threads."""
    if not is_open.any():
        return shares(edges)
    threads = max(1, min(torch.get_num_threads(), atoms * atoms // EDGES_A_THREAD, atoms))
    return [atoms * k // threads for k in range(threads + 1)]
