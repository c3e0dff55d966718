"""Ewald sums: the splitting that an accuracy needs, the vectors of the reciprocal lattice, and the sum over them.

The energy of charges q in a lattice, per set of charges, is

::

    Σ_pairs q q' p(r) + ½ Σ_k A(k) |S(k)|² - ½ (2 α / √π + s) Σ q² - b / 2V (Σ q)²

::

  | variable | symbol |
  |---|---|
  | pairs up to a cutoff c | p(r) = erfc(α r) / r - s, with s = erfc(α c) / c, so that no pair enters with a jump |
  | integral of p over the sphere | b, π / α² if c is long |
  | amplitude | A(k) = 4π / V · exp(-k² / 4α²) / k² |
  | structure factor | S(k) = Σ_i q_i exp(i k · r_i) |

The last term is the uniform background that neutralizes a charged cell. A slab is summed in a cell that is periodic in
three directions, with vacuum between the images, to which the correction of Yeh and Berkowitz, 2π / V (Σ q z)², is
added (J. Chem. Phys. 111, 3155, 1999).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.models.priors.mesh import Mesh, indices_of
from torchmdx.models.priors.splitting import Splitting, takes_mesh
from torchmdx.structures.cell import complete
from torchmdx.structures.system import Batch

# By this fraction the cell may be stretched before vectors are chosen again, and by this one a slab may thicken.
CELL_MARGIN, SLAB_MARGIN = 0.03, 0.1
MOST_CHARGE = 1e-3  # e: of a slab that counts as neutral
MOST_SLOTS = {"vectors": 20_000_000, "points": 40_000_000}  # in a box around all vectors, and of a mesh
TWO_PI = 2 * math.pi


@dataclass(frozen=True, eq=False)
class KVectors:
    """Half of the vectors of the reciprocal lattices of S systems, as a list that keeps its shape while cells change.

    indices [S,K,3] float64: vectors in units of the reciprocal lattice; unused slots are zero. cell, pbc: those that
    the list was made for; periodic: numbers of the periodic systems. heights [S] Å: of the cells of slabs, across;
    thickest [S] Å: of the slabs that fit there. With a mesh, the vectors are those of its transform, of one shape for
    all systems.
    """

    splitting: Splitting
    indices: Tensor
    cell: Tensor
    pbc: Tensor
    heights: Tensor
    thickest: Tensor
    margin: float
    periodic: tuple[int, ...]
    has_slabs: bool
    mesh: Mesh | None = None
    shape: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(
        cls, batch: Batch, splitting: Splitting, charges: Tensor, margin: float = 0.0, method: str = "ewald"
    ) -> KVectors:
        """The list for a batch with charges [N,M]. Reads the device.

        Args:
            margin: By which cells may be stretched later.
            method: "ewald", "pme", or "auto": the faster of both.

        Raises:
            ValueError: Naming the system, for wires and for charged slabs.
        """
        device = batch.positions.device
        cell, pbc = batch.cell.detach().double(), batch.pbc
        _require_sums(batch, charges)
        full = complete(cell, pbc)
        thick = _thickness(batch, full)
        room = thick * (1 + (SLAB_MARGIN if margin else 0.0)) + (1.0 if margin else 0.0)
        heights = torch.where(pbc.sum(-1) == 2, room + _vacuum(full, pbc, splitting), 1.0)
        lattice = _with_heights(full, pbc, heights)
        has_slabs = bool((pbc.sum(-1) == 2).any())
        periodic = tuple(pbc.any(-1).nonzero()[:, 0].tolist())
        given = (splitting, cell.clone(), pbc.clone(), heights, room, margin, periodic, has_slabs)
        if periodic and (
            method == "pme" or (method == "auto" and _is_large(batch, lattice[list(periodic)], splitting))
        ):
            mesh = Mesh.of(splitting)
            shape = mesh.shape(lattice[list(periodic)] * (1 + margin))
            _require_few(math.prod(shape), "points", lattice)
            indices = indices_of(shape, device).expand(batch.num_systems, -1, -1)
            return cls(splitting, indices, *given[1:], mesh, shape)
        found = [lattice.new_zeros(0, 3)] * batch.num_systems
        for s in periodic:
            found[s] = half_of(lattice[s], splitting.longest * (1 + margin))
        most = max((len(each) for each in found), default=0)
        indices = torch.stack([torch.nn.functional.pad(each, (0, 0, 0, most - len(each))) for each in found])
        return cls(splitting, indices.to(device), *given[1:])

    @property
    def count(self) -> int:
        """The largest number of vectors of a system."""
        return self.indices.shape[1]

    @property
    def size(self) -> str:
        """What is summed over, as text."""
        if self.mesh is None:
            return f"vectors up to {self.splitting.longest:.2f} 1/Å, {self.count:,} of them"
        points = " x ".join(map(str, self.shape))
        return f"a mesh of {points} points, splines of order {self.mesh.order}"

    def lattice(self, cell: Tensor) -> Tensor:
        """Cells [S,3,3] that are periodic in three directions, those of slabs with vacuum. Differentiable."""
        return _with_heights(complete(cell, self.pbc), self.pbc, self.heights.to(cell.dtype))

    def normals(self, cell: Tensor) -> Tensor:
        """Unit vectors [S,3] across slabs; zero for other systems. Differentiable."""
        across = torch.where(self.pbc[..., None], 0.0, complete(cell, self.pbc)).sum(1)
        return torch.where(self.slabs[:, None], across, 0.0)

    @property
    def slabs(self) -> Tensor:
        """Which systems are slabs [S], bool."""
        return self.pbc.sum(-1) == 2

    def fits(self, batch: Batch) -> Tensor:
        """Whether the list serves a batch, [] bool: no cell is stretched, and no slab thickened, by too much.

        A cell h = h₀ F shortens no vector of the reciprocal lattice by more than the largest singular value of F. Its
        square is at most m + √2 s, with the mean m and the standard deviation s of the eigenvalues of FᵀF. Reads
        nothing on the host.
        """
        cell = batch.cell.detach().double()
        stretch = inverse(self.lattice(self.cell)) @ self.lattice(cell)
        square = stretch.transpose(1, 2) @ stretch
        mean = square.diagonal(dim1=1, dim2=2).mean(-1)
        spread = ((square**2).sum((1, 2)) / 3 - mean**2).clamp(min=0.0).sqrt()
        # What is not a number is found elsewhere.
        fine = ~(mean + math.sqrt(2) * spread > (1 + self.margin) ** 2 + 1e-7)
        thick = _thickness(batch, complete(cell, self.pbc))
        fine &= ~self.slabs | ~(thick > self.thickest + 1e-9)
        return (fine | ~self.pbc.any(-1)).all() & (self.pbc == batch.pbc).all()


class KeptVectors:
    """The list of an engine: chosen when an evaluation is launched, kept while it fits, and fixed in a capture.

    Replaced lists stay alive: a graph that was captured with one may still be replayed, and finds that it does not fit.
    """

    def __init__(self) -> None:
        self.lists: list[KVectors] = []

    def serve(
        self, batch: Batch, splitting: Splitting, charges: Tensor, overflow: Tensor, method: str = "ewald"
    ) -> KVectors:
        """The list for a batch with charges [N,M]; `overflow` [] is set at a replay that the list does not fit."""
        if shapes_are_fixed(batch.positions):
            if not self.lists:
                raise RuntimeError("an evaluation must have run before it is captured")
            overflow.logical_or_(~self._fits(batch, charges))
        elif not self.lists or self.lists[-1].splitting != splitting or not bool(self._fits(batch, charges)):
            kept = self.lists if batch.positions.is_cuda else []  # a CPU captures no graphs
            self.lists = [*kept, KVectors.of(batch, splitting, charges, CELL_MARGIN, method)]
        return self.lists[-1]

    def _fits(self, batch: Batch, charges: Tensor) -> Tensor:
        """Whether the last list serves a batch, [] bool. None serves a slab that is charged now."""
        fine = self.lists[-1].fits(batch)
        return fine & ~(_charges_of_slabs(batch, charges) > MOST_CHARGE).any() if self.lists[-1].has_slabs else fine

    def forget(self) -> None:
        """Frees the lists, once there is no graph that was captured with one."""
        self.lists = []

    @property
    def latest(self) -> KVectors | None:
        return self.lists[-1] if self.lists else None


def inverse(matrices: Tensor) -> Tensor:
    """Inverses [S,3,3] by products of vectors, which a graph can record."""
    return dual(matrices).transpose(1, 2)


def dual(lattice: Tensor) -> Tensor:
    """Rows of the reciprocal lattice [S,3,3], without the factor 2π."""
    a, b, c = lattice.unbind(-2)
    crossed = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], -2)
    return crossed / (a * crossed[:, 0]).sum(-1)[:, None, None]


def _with_heights(full: Tensor, pbc: Tensor, heights: Tensor) -> Tensor:
    return full * torch.where(pbc, 1.0, heights[:, None]).to(full.dtype)[..., None]


def half_of(lattice: Tensor, longest: float) -> Tensor:
    """Indices [K,3] of the vectors of one reciprocal lattice up to a length, one of k and -k. Raises ValueError."""
    lengths = torch.linalg.vector_norm(lattice, dim=-1).nan_to_num()
    most = [int(longest * float(length) / TWO_PI) for length in lengths]
    _require_few(math.prod(2 * number + 1 for number in most), "vectors", lattice)
    ranges = [
        torch.arange(first, number + 1, dtype=torch.float64, device=lattice.device)
        for first, number in zip((0, *(-n for n in most[1:])), most, strict=False)
    ]
    grid = torch.cartesian_prod(*ranges)
    square = ((grid @ (TWO_PI * dual(lattice[None])[0])) ** 2).sum(-1)
    x, y, z = grid.unbind(-1)
    half = (x > 0) | ((x == 0) & ((y > 0) | ((y == 0) & (z > 0))))
    return grid[half & (square <= longest**2)]


def _require_few(slots: int, things: str, lattice: Tensor) -> None:
    if slots > MOST_SLOTS[things]:
        raise ValueError(
            f"an Ewald sum needs a box of at most {MOST_SLOTS[things]:,} {things}, got {slots:,} for the cell "
            f"{lattice.tolist()}: a longer cutoff of the prior coulomb needs fewer {things}"
        )


def _is_large(batch: Batch, lattices: Tensor, splitting: Splitting) -> bool:
    """Whether a mesh is faster for periodic systems with these lattices, as judged by their mean size."""
    volume = float(torch.linalg.det(lattices).abs().nan_to_num().mean())
    return takes_mesh(splitting, batch.num_atoms / len(lattices), volume)


def _thickness(batch: Batch, full: Tensor) -> Tensor:
    """Extents [S] Å of the atoms of slabs along their normal; what it says of other systems has no meaning."""
    normal = torch.where(batch.pbc[..., None], 0.0, full).sum(1)
    index, places = batch.system_index, batch.positions.detach().double()
    along = (places * normal.index_select(0, index)).sum(-1)
    ends = []
    for sign in (1.0, -1.0):
        most = along.new_full((batch.num_systems,), -torch.inf)
        ends.append(most.scatter_reduce(0, index, sign * along, "amax"))
    return (ends[0] + ends[1]).nan_to_num().clamp(min=0.0)


def _vacuum(full: Tensor, pbc: Tensor, splitting: Splitting) -> Tensor:
    """Vacuum [S] Å between the images of slabs: fields of their structure decay as exp(-k z), with the smallest k."""
    first = torch.where(pbc[..., None], TWO_PI * dual(full), 0.0)
    pairs = [first[:, i] + sign * first[:, j] for i, j in ((0, 1), (0, 2), (1, 2)) for sign in (1.0, -1.0)]
    lengths = torch.linalg.vector_norm(torch.stack([*first.unbind(1), *pairs], 1), dim=-1)
    shortest = torch.where(lengths > 0, lengths, torch.inf).amin(-1)
    return ((splitting.exponent + 2) / shortest).clamp(min=splitting.cutoff)


def _require_sums(batch: Batch, charges: Tensor) -> None:
    """Raises ValueError for wires and charged slabs, whose lattice sums are not these."""
    directions = batch.pbc.sum(-1)
    if bool((wires := directions == 1).any()):
        raise ValueError(
            "an Ewald sum needs two or three periodic directions, got one (a wire, system "
            f"{int(wires.nonzero()[0])}): take coulomb='reaction_field'"
        )
    sums = _charges_of_slabs(batch, charges)
    if bool((sums > MOST_CHARGE).any()):
        system = int((sums > MOST_CHARGE).nonzero()[0])
        raise ValueError(
            f"an Ewald sum of a slab needs charges that add up to 0 e, got {float(sums[system]):g} (system {system}): "
            "take coulomb='reaction_field'"
        )


def _charges_of_slabs(batch: Batch, charges: Tensor) -> Tensor:
    """Total charges [S] of slabs, without sign, of the set of charges [N,M] where they are largest; 0 for others."""
    sums = charges.new_zeros(batch.num_systems, charges.shape[1], dtype=torch.float64)
    sums = sums.index_add(0, batch.system_index, charges.detach().double()).abs().amax(-1)
    return torch.where(batch.pbc.sum(-1) == 2, sums, 0.0)
