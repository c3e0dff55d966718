"""The sum of an Ewald sum over the reciprocal lattice with its derivatives.

For few atoms and vectors no phase is stored. For many, waves are stored for a part of the vectors at a time, and the
products are those of cuBLAS, which is faster there.

For bulk systems in steps that need no further derivatives; engines/reciprocal.py has the formulas in torch. Phases are
products of whole numbers: fractional coordinates in units of 2⁻³² turns, whose overflow leaves out whole turns. Sums
have a fixed order, and nothing synchronises with the host.

::

  | buffer | shape | holds |
  |---|---|---|
  | X, CELL | [N,3], [S,3,3] | coordinates and cells, float32 or float64 |
  | PLACE | [N,3] | fractional coordinates in 2⁻³² turns, int32 |
  | DUAL, VOLUME | [S,3,3], [S] | rows of the reciprocal lattices, without 2π; float64 |
  | INDEX | [S,K,3] | vectors in units of the reciprocal lattice, int32; the first is zero: the background |
  | Q | [M/WIDE,N,WIDE] | charges, as for coulomb.py |
  | FACTORS | [PARTS,S,2,K,CHANNELS] | parts of the structure factors, real and imaginary |
  | WAVES | [S,2,K,CHANNELS] | structure factors times amplitudes |
  | VECTOR, POWER | [S,K,3], [S,K] | vectors, 1/Å; amplitude times weighted square of the structure factor, float64 |
  | FIELDS, SLOPES | [PARTS,N,CHANNELS], [PARTS,N,3] | parts of potentials and of gradients in positions |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmdx.engines.gpu.triton.coulomb import FEWEST, put, put3
from torchmdx.engines.gpu.triton.mesh import MeshSum, wave_vectors
from torchmdx.engines.gpu.triton.nine import load3, store3
from torchmdx.models.priors.ewald import KVectors, inverse
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.system import Batch

if TYPE_CHECKING:
    from torchmdx.engines.gpu.triton.coulomb import Found
    from torchmdx.models.priors.coulomb import Coulomb

TURN = tl.constexpr(2 * math.pi / 2**32)
TWO_PI, ROOT_TWO = tl.constexpr(2 * math.pi), tl.constexpr(math.sqrt(2))
VECTORS, ATOMS = 64, 32  # of a tile
FEW_VECTORS = 16  # of a program that reads every part of their structure factors
MOST_FUSED = 2_000_000  # atoms times vectors, beyond which products of cuBLAS are faster
MOST_WAVES = 32_000_000  # atoms times vectors that are stored at a time
PROGRAMS = 512  # that a card is to have, at least
MOST_PARTS = 16


@triton.jit
def _dot3(a, ROW, b, COLUMN):
    """a [3] · b [3] from pointers to numbers that are one row, and one column, of 3x3 matrices."""
    found = tl.load(a + 3 * ROW).to(tl.float64) * tl.load(b + COLUMN).to(tl.float64)
    found += tl.load(a + 3 * ROW + 1).to(tl.float64) * tl.load(b + 3 + COLUMN).to(tl.float64)
    return found + tl.load(a + 3 * ROW + 2).to(tl.float64) * tl.load(b + 6 + COLUMN).to(tl.float64)


@triton.jit
def lattices(CELL, PBC, KEPT_INVERSE, KEPT_PBC, DUAL, VOLUME, OVERFLOW, LIMIT: tl.constexpr):
    """The reciprocal lattice of a system, and whether its list of vectors serves it (`KVectors.fits`)."""
    s = tl.program_id(0)
    cell = CELL + s * 9
    a0, a1, a2 = tl.load(cell).to(tl.float64), tl.load(cell + 1).to(tl.float64), tl.load(cell + 2).to(tl.float64)
    b0, b1, b2 = tl.load(cell + 3).to(tl.float64), tl.load(cell + 4).to(tl.float64), tl.load(cell + 5).to(tl.float64)
    c0, c1, c2 = tl.load(cell + 6).to(tl.float64), tl.load(cell + 7).to(tl.float64), tl.load(cell + 8).to(tl.float64)
    x0, x1, x2 = b1 * c2 - b2 * c1, b2 * c0 - b0 * c2, b0 * c1 - b1 * c0
    volume = a0 * x0 + a1 * x1 + a2 * x2
    dual = DUAL + s * 9
    y0, y1, y2 = c1 * a2 - c2 * a1, c2 * a0 - c0 * a2, c0 * a1 - c1 * a0
    z0, z1, z2 = a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0
    store3(dual, (x0 / volume, x1 / volume, x2 / volume), None, 1)
    store3(dual + 3, (y0 / volume, y1 / volume, y2 / volume), None, 1)
    store3(dual + 6, (z0 / volume, z1 / volume, z2 / volume), None, 1)
    tl.store(VOLUME + s, tl.abs(volume))
    same, periodic = True, False
    for axis in tl.static_range(3):
        now, before = tl.load(PBC + s * 3 + axis) != 0, tl.load(KEPT_PBC + s * 3 + axis) != 0
        same = same & (now == before)
        periodic = periodic | before
    # FᵀF of F = h₀⁻¹ h: its trace, and the sum of its squared elements.
    trace, squares = a0 * 0, a0 * 0
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            element = a0 * 0
            for k in tl.static_range(3):
                f = _dot3(KEPT_INVERSE + s * 9, k, cell, i)
                element += f * _dot3(KEPT_INVERSE + s * 9, k, cell, j)
            squares += element * element
            if i == j:
                trace += element
    mean = trace / 3
    spread = tl.sqrt(tl.maximum(squares / 3 - mean * mean, 0.0))
    stretched = periodic & (mean + ROOT_TWO * spread > LIMIT)
    tl.store(OVERFLOW, 1, mask=stretched | (same == 0))


@triton.jit(do_not_specialize=["num_atoms"])
def places(X, SYSTEM, DUAL, PLACE, num_atoms, ROWS: tl.constexpr):
    """Fractional coordinates of atoms, less whole turns."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = i < num_atoms
    dual = DUAL + tl.load(SYSTEM + i, mask=here, other=0) * 9
    x = tl.load(X + i * 3, mask=here, other=0.0).to(tl.float64)
    y = tl.load(X + i * 3 + 1, mask=here, other=0.0).to(tl.float64)
    z = tl.load(X + i * 3 + 2, mask=here, other=0.0).to(tl.float64)
    for axis in tl.static_range(3):
        f = x * tl.load(dual + 3 * axis) + y * tl.load(dual + 3 * axis + 1) + z * tl.load(dual + 3 * axis + 2)
        f = (f - tl.floor(f + 0.5)) * 4294967296.0
        tl.store(PLACE + i * 3 + axis, f.to(tl.int64).to(tl.int32), mask=here)


@triton.jit
def _whole(n, f):
    """n f in 2⁻³² turns: the overflow leaves out whole turns."""
    return tl.mul(n, f, sanitize_overflow=False)


@triton.jit
def _phases(INDEX, PLACE, k, kept, i, there):
    """(cos, sin) of k · r, for vectors k and atoms i in two directions of a tile."""
    index, place = INDEX + k * 3, PLACE + i * 3
    n0 = tl.load(index, mask=kept, other=0)
    n1 = tl.load(index + 1, mask=kept, other=0)
    n2 = tl.load(index + 2, mask=kept, other=0)
    f0 = tl.load(place, mask=there, other=0)
    f1 = tl.load(place + 1, mask=there, other=0)
    f2 = tl.load(place + 2, mask=there, other=0)
    turns = tl.add(_whole(n0, f0), _whole(n1, f1), sanitize_overflow=False)
    turns = tl.add(turns, _whole(n2, f2), sanitize_overflow=False)
    angle = turns.to(tl.float32) * TURN
    return tl.cos(angle), tl.sin(angle)


@triton.jit(do_not_specialize=["num_atoms", "first", "end", "width"])
def waves(
    PLACE, INDEX, COSINES, SINES, num_atoms, first, end, width, VECTORS: tl.constexpr, ATOMS: tl.constexpr
):  # fmt: skip
    """cos and sin of k · r [N,width], of the vectors from `first` to `end` of a single system."""
    i = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    k = tl.program_id(1) * VECTORS + tl.arange(0, VECTORS)
    there, kept = i < num_atoms, first + k < end
    c, d = _phases(INDEX, PLACE, (first + k)[None, :], kept[None, :], i[:, None], there[:, None])
    at = i.to(tl.int64)[:, None] * width + k[None, :]
    tl.store(COSINES + at, c, mask=there[:, None] & kept[None, :])
    tl.store(SINES + at, d, mask=there[:, None] & kept[None, :])


@triton.jit(do_not_specialize=["num_vectors", "num_systems", "apart"])
def structure_factors(
    PLACE, INDEX, Q, PTR, PERIODIC, FACTORS, num_vectors, num_systems, apart, M: tl.constexpr, WIDE: tl.constexpr,
    CHANNELS: tl.constexpr, VECTORS: tl.constexpr, ATOMS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Structure factors of some vectors, from a part of the atoms of their system."""
    part, s = tl.program_id(1), tl.load(PERIODIC + tl.program_id(2)).to(tl.int64)
    k = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    kept, m = k < num_vectors, tl.arange(0, CHANNELS)
    channel = (m // WIDE).to(tl.int64) * apart + m % WIDE
    real = tl.zeros((VECTORS, CHANNELS), tl.float32)
    imaginary = tl.zeros((VECTORS, CHANNELS), tl.float32)
    end = tl.load(PTR + s + 1)
    for start in range(tl.load(PTR + s) + part * ATOMS, end, PARTS * ATOMS):
        i = start + tl.arange(0, ATOMS)
        there = i < end
        c, d = _phases(INDEX + s * num_vectors * 3, PLACE, k[:, None], kept[:, None], i[None, :], there[None, :])
        at = i.to(tl.int64)[:, None] * WIDE + channel[None, :]
        q = tl.load(Q + at, mask=there[:, None] & (m < M)[None, :], other=0.0)
        real += tl.dot(c, q, input_precision="tf32x3")
        imaginary += tl.dot(d, q, input_precision="tf32x3")
    row = ((part * num_systems + s) * 2 * num_vectors + k).to(tl.int64)
    at = row[:, None] * CHANNELS + m[None, :]
    tl.store(FACTORS + at, real, mask=kept[:, None])
    tl.store(FACTORS + at + num_vectors.to(tl.int64) * CHANNELS, imaginary, mask=kept[:, None])


@triton.jit(do_not_specialize=["num_vectors", "num_systems"])
def amplitudes(
    INDEX, DUAL, VOLUME, FACTORS, W, PERIODIC, WAVES, VECTOR, POWER, num_vectors, num_systems, ALPHA: tl.constexpr,
    BACKGROUND: tl.constexpr, M: tl.constexpr, CHANNELS: tl.constexpr, VECTORS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Structure factors of some vectors times amplitudes, from all parts of the atoms."""
    s = tl.load(PERIODIC + tl.program_id(1)).to(tl.int64)
    k = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    kept, m = k < num_vectors, tl.arange(0, CHANNELS)
    index, dual = INDEX + (s * num_vectors + k) * 3, DUAL + s * 9
    n0 = tl.load(index, mask=kept, other=0).to(tl.float64)
    n1 = tl.load(index + 1, mask=kept, other=0).to(tl.float64)
    n2 = tl.load(index + 2, mask=kept, other=0).to(tl.float64)
    kx, ky, kz, square, used = wave_vectors(n0, n1, n2, dual)
    volume = tl.load(VOLUME + s)
    amplitude = 4 * TWO_PI / volume * tl.exp(-square / (4 * ALPHA * ALPHA)) / square
    amplitude = tl.where(used, amplitude, tl.where(k == 0, -BACKGROUND / volume, 0.0))
    store3(VECTOR + (s * num_vectors + k) * 3, (kx, ky, kz), kept, 1)
    real = tl.zeros((VECTORS, CHANNELS), tl.float32)
    imaginary = tl.zeros((VECTORS, CHANNELS), tl.float32)
    half = num_vectors.to(tl.int64) * CHANNELS
    for part in tl.static_range(PARTS):
        row = ((part * num_systems + s) * 2 * num_vectors + k).to(tl.int64)
        at = row[:, None] * CHANNELS + m[None, :]
        real += tl.load(FACTORS + at, mask=kept[:, None], other=0.0)
        imaginary += tl.load(FACTORS + at + half, mask=kept[:, None], other=0.0)
    w = tl.load(W + m, mask=m < M, other=0.0)[None, :]
    power = amplitude * tl.sum(w * (real * real + imaginary * imaginary), 1).to(tl.float64)
    tl.store(POWER + s * num_vectors + k, power, mask=kept)
    at = (s * 2 * num_vectors + k).to(tl.int64)[:, None] * CHANNELS + m[None, :]
    factor = amplitude.to(tl.float32)[:, None]
    tl.store(WAVES + at, factor * real, mask=kept[:, None])
    tl.store(WAVES + at + half, factor * imaginary, mask=kept[:, None])


@triton.jit(do_not_specialize=["num_atoms", "num_vectors", "apart"])
def fields(
    PLACE, INDEX, VECTOR, WAVES, Q, W, PTR, PERIODIC, FIELDS, SLOPES, num_atoms, num_vectors, apart, M: tl.constexpr,
    WIDE: tl.constexpr, CHANNELS: tl.constexpr, VECTORS: tl.constexpr, ATOMS: tl.constexpr, PARTS: tl.constexpr,
    FORCES: tl.constexpr,
):  # fmt: skip
    """Potentials at some atoms, and gradients in their positions, from a part of the vectors of their system."""
    part, s = tl.program_id(1), tl.load(PERIODIC + tl.program_id(2)).to(tl.int64)
    end = tl.load(PTR + s + 1)
    i = tl.load(PTR + s) + tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    there, m = i < end, tl.arange(0, CHANNELS)
    if tl.max(there.to(tl.int32), 0) != 0:
        channel = (m // WIDE).to(tl.int64) * apart + m % WIDE
        at = i.to(tl.int64)[:, None] * WIDE + channel[None, :]
        w = tl.load(W + m, mask=m < M, other=0.0)[None, :]
        wq = tl.load(Q + at, mask=there[:, None] & (m < M)[None, :], other=0.0) * w
        field = tl.zeros((ATOMS, CHANNELS), tl.float32)
        x, y, z = tl.zeros((ATOMS,), tl.float32), tl.zeros((ATOMS,), tl.float32), tl.zeros((ATOMS,), tl.float32)
        for start in range(part * VECTORS, num_vectors, PARTS * VECTORS):
            k = start + tl.arange(0, VECTORS)
            kept = k < num_vectors
            c, d = _phases(INDEX + s * num_vectors * 3, PLACE, k[None, :], kept[None, :], i[:, None], there[:, None])
            row = (s * 2 * num_vectors + k).to(tl.int64)[:, None] * CHANNELS + m[None, :]
            real = tl.load(WAVES + row, mask=kept[:, None], other=0.0)
            half = num_vectors.to(tl.int64) * CHANNELS
            imaginary = tl.load(WAVES + row + half, mask=kept[:, None], other=0.0)
            field += tl.dot(c, real, input_precision="tf32x3")
            field += tl.dot(d, imaginary, input_precision="tf32x3")
            if FORCES:
                along = c * tl.dot(wq, imaginary.T, input_precision="tf32x3")
                along -= d * tl.dot(wq, real.T, input_precision="tf32x3")
                vector = VECTOR + (s * num_vectors + k) * 3
                x += tl.sum(along * tl.load(vector, mask=kept, other=0.0).to(tl.float32)[None, :], 1)
                y += tl.sum(along * tl.load(vector + 1, mask=kept, other=0.0).to(tl.float32)[None, :], 1)
                z += tl.sum(along * tl.load(vector + 2, mask=kept, other=0.0).to(tl.float32)[None, :], 1)
        row = (part * num_atoms + i).to(tl.int64)
        tl.store(FIELDS + row[:, None] * CHANNELS + m[None, :], field, mask=there[:, None])
        if FORCES:
            store3(SLOPES + row * 3, (x, y, z), there, 1)


@triton.jit(do_not_specialize=["num_atoms", "apart"])
def collect(
    Q, W, SYSTEM, KEPT_PBC, FIELDS, SLOPES, E, F, PULL, num_atoms, apart, STRENGTH: tl.constexpr, OWN: tl.constexpr,
    M: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr, ATOMS: tl.constexpr, PARTS: tl.constexpr,
    FORCES: tl.constexpr,
):  # fmt: skip
    """Adds the results of some atoms to energies, forces and derivatives in charges."""
    i = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    here, m = i < num_atoms, tl.arange(0, CHANNELS)
    pbc = KEPT_PBC + tl.load(SYSTEM + i, mask=here, other=0) * 3
    periodic = tl.load(pbc, mask=here, other=0) | tl.load(pbc + 1, mask=here, other=0)
    seen = here & ((periodic | tl.load(pbc + 2, mask=here, other=0)) != 0)
    channel = (m // WIDE).to(tl.int64) * apart + m % WIDE
    at = i.to(tl.int64)[:, None] * WIDE + channel[None, :]
    own = seen[:, None] & (m < M)[None, :]
    q = tl.load(Q + at, mask=own, other=0.0)
    w = tl.load(W + m, mask=m < M, other=0.0)[None, :]
    field = -OWN * q
    x, y, z = tl.zeros((ATOMS,), tl.float32), tl.zeros((ATOMS,), tl.float32), tl.zeros((ATOMS,), tl.float32)
    for part in tl.static_range(PARTS):
        row = (part * num_atoms + i).to(tl.int64)
        field += tl.load(FIELDS + row[:, None] * CHANNELS + m[None, :], mask=seen[:, None], other=0.0)
        if FORCES:
            more = load3(SLOPES + row * 3, seen, 1)
            x, y, z = x + more[0], y + more[1], z + more[2]
    put(E + i, (0.5 * STRENGTH * tl.sum(w * q * field, 1)).to(tl.float64), seen, True)
    if FORCES:
        put(PULL + at, STRENGTH * w * field, own, True)
        put3(F + i * 3, -STRENGTH * x, -STRENGTH * y, -STRENGTH * z, seen, True)


@dataclass(frozen=True, eq=False)
class _List:
    """A list of vectors as the kernels read it. index [S,K,3] int32, inverse [S,3,3] float64, pbc [S,3] uint8.

    On a mesh, `mesh` takes the place of index.
    """

    vectors: KVectors
    index: Tensor
    inverse: Tensor
    pbc: Tensor
    periodic: Tensor
    mesh: MeshSum | None

    @classmethod
    def of(cls, vectors: KVectors, channels: dict[str, int], wide: dict[str, int]) -> _List:
        mesh = None if vectors.mesh is None else MeshSum(vectors, channels, wide)
        index = vectors.indices[:, : 0 if mesh else None]
        index = torch.nn.functional.pad(index, (0, 0, 1, 0)).int().contiguous()
        numbers = torch.tensor(vectors.periodic, dtype=torch.int32, device=index.device)
        kept = inverse(vectors.lattice(vectors.cell)).contiguous()
        return cls(vectors, index, kept, vectors.pbc.to(torch.uint8).contiguous(), numbers, mesh)


class DirectReciprocal:
    """The launches of a prior for bulk systems in batches of one shape. count, wide: as for `DirectCoulomb`.

    `run` fills buffers, in parallel with other launches; `add` adds their results to those of the pairs.
    """

    def __init__(self, prior: Coulomb, batch: Batch, count: int = 1, wide: int = 1) -> None:
        assert prior.splitting is not None
        self.prior, self.splitting = prior, prior.splitting
        weights = prior.weights.detach().float().reshape(-1, count)
        self.weights = torch.nn.functional.pad(weights, (0, wide - count)).flatten().contiguous()
        channels = max(FEWEST, triton.next_power_of_2(len(self.weights)))
        self.channels = dict(M=len(self.weights), CHANNELS=channels)
        self.wide = dict(WIDE=wide)
        self.ends = torch.arange(batch.num_systems + 1, dtype=batch.system_index.dtype, device=batch.positions.device)
        self.lists: list[_List] = []

    def _list(self, vectors: KVectors) -> _List:
        """Lists stay as long as those of `KeptVectors`."""
        if not self.lists or self.lists[-1].vectors is not vectors:
            kept = [] if self.prior.kept is None else self.prior.kept.lists
            self.lists = [each for each in self.lists if each.vectors in kept]
            self.lists.append(_List.of(vectors, self.channels, self.wide))
        return self.lists[-1]

    def run(self, vectors: KVectors, batch: Batch, charges: Tensor, overflow: Tensor, *, forces: bool) -> None:
        """charges: [M/wide,N,wide], float32. overflow [] bool: set if the list does not fit the batch."""
        self.kept, self.with_forces = kept, forces = self._list(vectors), forces
        n, systems, count = batch.num_atoms, batch.num_systems, kept.index.shape[1]
        empty, wide = charges.new_empty, torch.float64
        dual, volume = empty(systems, 3, 3, dtype=wide), empty(systems, dtype=wide)
        limit = (1 + vectors.margin) ** 2 + 1e-7
        pbc = batch.pbc.to(torch.uint8)
        lattices[(systems,)](
            batch.cell, pbc, kept.inverse, kept.pbc, dual, volume, overflow.view(torch.uint8), LIMIT=limit, num_warps=1
        )
        place = empty(n, 3, dtype=torch.int32)
        places[(triton.cdiv(n, 128),)](batch.positions, batch.system_index, dual, place, n, ROWS=128)
        if kept.mesh is not None:
            given = (place, batch.system_index, dual, volume, charges, self.weights, kept.periodic)
            self.vector, self.power = kept.mesh.run(*given, forces=forces)
            self.found, self.parts = kept.mesh.found, 1
            return
        if len(kept.periodic) == 1 and n * count > MOST_FUSED:
            self._by_products(place, dual, volume, batch.system_index, charges)
            return
        bounds = torch.searchsorted(batch.system_index, self.ends, out_int32=True)
        number, apart = len(kept.periodic), charges.stride(0)
        blocks, parts = triton.cdiv(count, VECTORS), self._parts(triton.cdiv(count, VECTORS) * number, n // ATOMS)
        factors = empty(parts, systems, 2, count, self.channels["CHANNELS"])
        structure_factors[(blocks, parts, number)](
            place, kept.index, charges, bounds, kept.periodic, factors, count, systems, apart, **self.channels,
            **self.wide, VECTORS=VECTORS, ATOMS=ATOMS, PARTS=parts,
        )  # fmt: skip
        waves, self.vector = torch.empty_like(factors[0]), empty(systems, count, 3, dtype=wide)
        self.power = torch.zeros(systems, count, dtype=wide, device=charges.device)
        amplitudes[(triton.cdiv(count, FEW_VECTORS), number)](
            kept.index, dual, volume, factors, self.weights, kept.periodic, waves, self.vector, self.power, count,
            systems, ALPHA=self.splitting.alpha, BACKGROUND=self.splitting.background, **self.channels,
            VECTORS=FEW_VECTORS, PARTS=parts,
        )  # fmt: skip
        blocks = triton.cdiv(n, ATOMS)
        self.parts = parts = self._parts(blocks, count // VECTORS)
        self.found = (empty(parts, n, self.channels["CHANNELS"]), empty(parts, n, 3))
        fields[(blocks, parts, number)](
            place, kept.index, self.vector, waves, charges, self.weights, bounds, kept.periodic, *self.found, n, count,
            apart, **self.channels, **self.wide, VECTORS=VECTORS, ATOMS=ATOMS, PARTS=parts, FORCES=forces,
        )  # fmt: skip

    @isolated
    def _by_products(
        self, place: Tensor, duals: Tensor, volumes: Tensor, system_index: Tensor, charges: Tensor
    ) -> None:
        """The sums of a single periodic system of many atoms and vectors; other atoms have no charges here."""
        (s,), n = self.kept.vectors.periodic, len(place)
        index, dual, volume = self.kept.index[s], duals[s], volumes[s]
        q = charges.transpose(0, 1).reshape(n, -1).contiguous() if charges.dim() == 3 else charges.T.contiguous()
        if len(duals) > 1:
            q = torch.where((system_index == s)[:, None], q, 0.0)
        weighted, channels = q * self.weights, q.shape[1]
        k = 2 * math.pi * (index.to(dual.dtype) @ dual)
        square = (k**2).sum(-1)
        used = square > 0
        square = torch.where(used, square, 1.0)
        amplitude = 8 * math.pi / volume * torch.exp(-square / (4 * self.splitting.alpha**2)) / square
        amplitude = torch.where(used, amplitude, 0.0)
        amplitude[0] = -self.splitting.background / volume
        fields, slope, powers = q.new_zeros(1, n, self.channels["CHANNELS"]), q.new_zeros(1, n, 3), []
        field, narrow = q.new_zeros(n, channels), k.to(q.dtype)
        step = max(VECTORS, MOST_WAVES // n // VECTORS * VECTORS)
        for first in range(0, len(index), step):
            end = min(first + step, len(index))
            cosines, sines = q.new_empty(2, n, end - first)
            grid = (triton.cdiv(n, ATOMS), triton.cdiv(end - first, VECTORS))
            waves[grid](place, index, cosines, sines, n, first, end, end - first, VECTORS=VECTORS, ATOMS=ATOMS)
            real, imaginary = cosines.T @ q, sines.T @ q
            factor = amplitude[first:end, None]
            powers.append(factor[:, 0] * ((real**2 + imaginary**2) @ self.weights).to(factor.dtype))
            real, imaginary = factor.to(q.dtype) * real, factor.to(q.dtype) * imaginary
            field.addmm_(cosines, real).addmm_(sines, imaginary)
            if self.with_forces:
                along = (weighted @ imaginary.T).mul_(cosines).addcmul_(weighted @ real.T, sines, value=-1)
                slope[0].addmm_(along, narrow[first:end])
        fields[0, :, :channels] = field
        self.found, self.parts = (fields, slope), 1
        self.vector, self.power = k.new_zeros(len(duals), *k.shape), k.new_zeros(len(duals), len(k))
        self.vector[s], self.power[s] = k, torch.cat(powers)

    def add(self, batch: Batch, charges: Tensor, out: Found) -> None:
        """Adds the results of `run` to energies, and with forces to forces and derivatives in charges."""
        collect[(triton.cdiv(batch.num_atoms, ATOMS),)](
            charges, self.weights, batch.system_index, self.kept.pbc, *self.found, out.energies, out.forces, out.pull,
            batch.num_atoms, charges.stride(0), STRENGTH=self.prior.config.strength, OWN=self.splitting.own_potential,
            **self.channels, **self.wide, ATOMS=ATOMS, PARTS=self.parts, FORCES=self.with_forces,
        )  # fmt: skip

    def virial(self) -> Tensor:
        """Derivatives [S,3,3] in a strain, float64, of the last `run`."""
        k, power = self.vector, 0.5 * self.prior.config.strength * self.power
        square = (k**2).sum(-1)
        inverse_square = torch.where(square > 0, 1 / square, 0.0) + 1 / (4 * self.splitting.alpha**2)
        weighted = k * (2 * power * inverse_square)[..., None]
        trace = power.sum(-1)[:, None, None] * torch.eye(3, dtype=k.dtype, device=k.device)
        found = weighted.transpose(1, 2) @ k - trace
        chosen = torch.zeros(len(found), dtype=torch.bool, device=k.device).index_fill(
            0, self.kept.periodic.long(), True
        )
        return torch.where(chosen[:, None, None], found, 0.0)

    @staticmethod
    def _parts(programs: int, most: int) -> int:
        """The number of parts into which the loops of these programs are divided, with a limit on rounds."""
        wanted = min(MOST_PARTS, most, triton.cdiv(PROGRAMS, max(programs, 1)))
        return max(1, triton.next_power_of_2(max(wanted, 1)))
