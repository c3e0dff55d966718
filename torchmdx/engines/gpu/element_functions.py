"""The filters of an embedding as combinations of few functions of the distance (triton/element_sums.py).

The functions are the leading right singular vectors of the filters, sampled in every interval of their table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.engines.gpu.triton.tf32_product import Split
from torchmdx.engines.knots import Stretch
from torchmdx.engines.plan.kernels import MOST_ELEMENTS

# Error of the combinations, of the largest value and of the largest slope of the filters.
BOUND = 2e-7
# Shortest distances that have to be described: atoms do not come so near. Å, and of the cutoff
SHORTEST, SHORTEST_SHARE = 0.4, 0.08
# Weight of shorter distances. Not zero, so that functions to spare describe these.
SHORT_WEIGHT = 1e-6
COUNTS = (16, 32, 64)
MOST_SUMS = 256  # elements times functions
PROBES = (0.0, 0.25, 0.5, 0.75, 1.0)  # where values and slopes are compared, in every interval


@dataclass(frozen=True, eq=False)
class ElementFunctions:
    """K functions: table [n,6,K], and matrices [3,K,C] that make the filters of them.

    Attributes:
        last_knot: The interval of the shortest distances for which they do, within BOUND.
    """

    table: Tensor
    matrices: Tensor
    last_knot: int

    @property
    def count(self) -> int:
        return self.table.shape[-1]

    @classmethod
    def of(cls, table: Tensor, stretch: Stretch) -> ElementFunctions | None:
        """From the embedding's table [n,6,3,C]; None if no count of COUNTS up to C/2 describes its filters."""
        channels = table.shape[-1]
        # On the CPU: torch's linear algebra on a GPU must not be initialized by two threads at once.
        exact = table.detach().double().cpu().flatten(2)
        samples = _samples(exact, stretch)
        if not samples.isfinite().all():
            return None
        distance = min(SHORTEST, SHORTEST_SHARE * stretch.cutoff)
        shortest = int(stretch(torch.tensor(distance, dtype=torch.float64, device="cpu")))
        weight = torch.ones(len(exact), 1, 1, dtype=torch.float64, device="cpu")
        weight[shortest + 1 :] = SHORT_WEIGHT
        triangle = torch.linalg.qr((samples * weight).flatten(0, 2), mode="r").R
        directions = torch.linalg.svd(triangle).Vh.T
        for count in COUNTS:
            if 2 * count > channels:
                return None
            basis = directions[:, :count]
            error = (samples - samples @ basis @ basis.T).abs().amax(dim=(0, 2, 3))
            wrong = torch.nonzero(~(error <= BOUND)).flatten()
            last = int(wrong[0]) - 1 if len(wrong) else len(exact) - 1
            if last >= shortest:
                functions = (exact @ basis).to(table.device, table.dtype).contiguous()
                matrices = basis.T.unflatten(1, (3, channels)).transpose(0, 1)
                return cls(functions, matrices.to(table.device, table.dtype).contiguous(), last)
        return None


@dataclass(frozen=True, eq=False)
class PresentElements:
    """The S elements of a structure. slots: [elements known to the network] int32, -1 for those that are not present.

    Attributes:
        matrices: W [3,C,K] and W V [3,C,S,K], each in two parts; matrices_back: W [3,K,C] and W V [3,S,K,C].
    """

    functions: ElementFunctions
    count: int
    slots: Tensor
    matrices: tuple[Tensor, ...]
    matrices_back: tuple[Tensor, ...]

    @classmethod
    def of(cls, functions: ElementFunctions | None, elements: Sequence[int], sources: Tensor) -> PresentElements | None:
        """sources: V [elements known,C]. None without functions, and for too many elements or none."""
        count = len(elements)
        if functions is None or not 0 < count <= MOST_ELEMENTS or count * functions.count > MOST_SUMS:
            return None
        slots = torch.full((len(sources),), -1, dtype=torch.int32, device="cpu")
        slots[list(elements)] = torch.arange(count, dtype=torch.int32, device="cpu")
        w = functions.matrices
        of_slots = w[:, None] * sources[list(elements)][:, None]  # [3,S,K,C]
        return cls(
            functions=functions,
            count=count,
            slots=slots.to(sources.device),
            matrices=(*_split(w.transpose(1, 2)), *_split(of_slots.permute(0, 3, 1, 2))),
            matrices_back=(*_split(w), *_split(of_slots)),
        )


def _split(matrix: Tensor) -> tuple[Tensor, Tensor]:
    parts = Split.of(matrix.contiguous())
    return parts.big, parts.small


def _samples(exact: Tensor, stretch: Stretch) -> Tensor:
    """Values [n,P,3C] and slopes in the distance at PROBES of polynomials [n,6,3C], of the largest of each; stacked."""
    place = torch.tensor(PROBES, dtype=torch.float64, device="cpu")
    power = torch.arange(exact.shape[1], dtype=torch.float64, device="cpu")
    values = place[:, None] ** power @ exact
    slopes = (power * place[:, None] ** (power - 1).clamp(min=0)) @ exact
    distance = stretch.inverse(torch.arange(len(exact), dtype=torch.float64, device="cpu")[:, None] + place)
    slopes = slopes * stretch.slope(distance)[..., None]
    tiny = torch.finfo(torch.float64).tiny
    return torch.stack([values / values.abs().amax().clamp(min=tiny), slopes / slopes.abs().amax().clamp(min=tiny)])
