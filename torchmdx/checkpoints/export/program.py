"""The exact network of a potential as one function of tensors, which torch can export: energies, forces and virial."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet import TensorNet
from torchmdx.neighbors.edges import Edges

INPUTS = ("positions", "atomic_numbers", "cell", "source", "target", "shifts", "charge")
OVER_EDGES = (ZBLConfig, D2Config)  # priors that are sums over edges
# Sizes that the program takes, whatever the sizes of the example that it is traced with.
MOST_ATOMS, MOST_EDGES = 10_000_000, 2**31 - 1


class Program(nn.Module):
    """energies [N] eV, forces [N,3] eV/Å and virial [3,3] eV, float64, of one structure.

    ::

        | input | shape and dtype |
        |---|---|
        | positions | [N,3] float64, Å |
        | atomic_numbers | [N] int64 |
        | cell | [3,3] float64, Å; rows are lattice vectors |
        | source, target | [E] int64: each pair in both directions, in any order |
        | shifts | [E,3] int64: vector = r_source - r_target + shifts @ cell |
        | charge | [] float64, total charge, e |

    Edges beyond the cutoff add nothing. The virial is -∂E/∂strain.
    """

    def __init__(self, potential: Potential) -> None:
        super().__init__()
        self.potential = potential

    def forward(
        self,
        positions: Tensor,
        atomic_numbers: Tensor,
        cell: Tensor,
        source: Tensor,
        target: Tensor,
        shifts: Tensor,
        charge: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        vectors = positions.index_select(0, source) - positions.index_select(0, target)
        vectors = vectors + shifts.to(positions.dtype) @ cell
        moving = vectors.detach().to(self.potential.dtype).requires_grad_()
        energies = self.energies(moving, atomic_numbers, source, target, charge)
        (slope,) = torch.autograd.grad(energies.sum(), moving)
        slope = slope.double()
        forces = torch.zeros_like(positions).index_add(0, target, slope).index_add(0, source, -slope)
        virial = -vectors.T @ slope
        return energies.detach(), forces, (virial + virial.T) / 2

    def energies(
        self, vectors: Tensor, atomic_numbers: Tensor, source: Tensor, target: Tensor, charge: Tensor
    ) -> Tensor:
        """Energies [N] of the atoms, as `Potential.assemble`, without reading a size as a number."""
        potential, count = self.potential, atomic_numbers.shape[0]
        none = torch.zeros((), dtype=torch.int64, device=vectors.device)
        rows = none.expand(count + 1)
        edges = Edges(rows, source, target, none.expand(source.shape[0], 3), none, none, none.bool())
        features = potential.network(edges, vectors, atomic_numbers, charge.to(vectors.dtype).expand(count))
        energies = potential.head(features).double() * potential.scale
        energies = energies + potential.reference_energies.index_select(0, atomic_numbers) + potential.shift / count
        distance = torch.linalg.vector_norm(vectors, dim=-1)
        for prior in potential.priors:
            energies = energies + prior(_AnySize(atomic_numbers, edges, distance)).double()
        return energies


class _OneSystem:
    """What a prior over edges reads of a batch."""

    def __init__(self, atomic_numbers: Tensor) -> None:
        self.atomic_numbers = atomic_numbers


class _AnySize(Geometry):
    """The input of priors over edges, for a number of atoms that is a symbol."""

    def __init__(self, atomic_numbers: Tensor, edges: Edges, distance: Tensor) -> None:
        given: dict[str, Any] = dict(batch=_OneSystem(atomic_numbers), edges=edges, distance=distance)
        for name, value in (given | dict(positions=distance, charges=None)).items():
            object.__setattr__(self, name, value)

    def onto_targets(self, values: Tensor) -> Tensor:
        count = self.batch.atomic_numbers.shape[0]
        return values.new_zeros(count).index_add(0, self.edges.target, values)


def require_exportable(potential: Potential | Ensemble) -> Potential:
    """The potential itself. Raises ValueError that names what cannot be exported."""
    if isinstance(potential, Ensemble):
        raise ValueError(f"only a single potential can be exported, got an ensemble of {len(potential)}")
    if type(potential.network) is not TensorNet:
        raise ValueError(f"only a TensorNet can be exported, got a {type(potential.network).__name__}")
    refused = [config.name for config in potential.prior_configs if not isinstance(config, OVER_EDGES)]
    if refused:
        raise ValueError(f"only the priors zbl and d2 can be exported, got the prior {' and the prior '.join(refused)}")
    return potential


def exported_program(potential: Potential, example: dict[str, Tensor]) -> torch.export.ExportedProgram:
    """The program of a potential for any number of atoms and edges, traced with an example of both."""
    arguments = tuple(example[name] for name in INPUTS)
    traced = make_fx(Program(potential), tracing_mode="symbolic", _allow_non_fake_inputs=True)(*arguments)
    atoms, edges = torch.export.Dim("atoms", min=1, max=MOST_ATOMS), torch.export.Dim("edges", min=0, max=MOST_EDGES)
    sizes: dict[str, Any] = {name: {0: edges} for name in ("source", "target", "shifts")}
    sizes |= {name: {0: atoms} for name in ("positions", "atomic_numbers")} | {"cell": None, "charge": None}
    return torch.export.export(
        _Traced(traced), arguments, dynamic_shapes=(tuple(sizes[name] for name in INPUTS),), strict=False
    )


class _Traced(nn.Module):
    def __init__(self, traced: nn.Module) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, *arguments: Tensor) -> Any:
        return self.traced(*arguments)
