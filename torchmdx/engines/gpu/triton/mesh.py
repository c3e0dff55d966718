"""The sum over the reciprocal lattice on a mesh: charges are spread, transformed, and potentials gathered.

For `DirectReciprocal`, with the same charges and results. Atoms are sorted by the tile of the grid that they are in, so
that each point sums the charges of the atoms near it, in a fixed order. Transforms are those of cuFFT. P is the order
of the splines, G the number of points of the grid, K that of its half transform, B the number of periodic systems.

::

  | buffer | shape | holds |
  |---|---|---|
  | PLACE | [N,3] | fractional coordinates in 2⁻³² turns, int32 |
  | FIRST | [N,3] | the highest point to which an atom is spread along each axis; the others are below it |
  | WEIGHTS | [N,2,3,P] | splines at these points, and their derivatives in steps of the grid |
  | KEY, ORDER, STARTS | [N], [N], [tiles+1] | tile of an atom, atoms sorted by it, and where tiles begin |
  | GRID | [B,M,G] | spread charges |
  | WAVES | [B,M,K,2] | their transforms, then multiplied by amplitudes |
  | FIELD | [B,G,M] | potentials at the points |
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmdx.engines.gpu.triton.nine import store3
from torchmdx.models.priors.ewald import KVectors
from torchmdx.models.priors.mesh import MULTIPLE, polynomials, wave_amplitudes
from torchmdx.runtime.isolation import isolated

SIDE, POINTS = MULTIPLE, MULTIPLE**3  # of a tile: points along an axis, and in all
ROWS = 128  # atoms of a program that reads each once
NEAR, GATHERED = 16, 4  # atoms at a time in the programs that spread and gather
WAVES = 128  # of a program
TWO_PI = tl.constexpr(2 * math.pi)
TURN = tl.constexpr(2.0**32)


@triton.jit(do_not_specialize=["num_atoms", "last", "nx", "ny", "nz"])
def weigh(
    PLACE, SYSTEM, SLOT, POLYNOMIALS, FIRST, WEIGHTS, KEY, num_atoms, last, nx, ny, nz, P: tl.constexpr,
    SIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Splines of some atoms, and their tiles; `last` is the tile of atoms of systems without periodic directions."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = i < num_atoms
    slot = tl.load(SLOT + tl.load(SYSTEM + i, mask=here, other=0), mask=here, other=-1)
    key = slot
    for axis in tl.static_range(3):
        points = nx if axis == 0 else ny if axis == 1 else nz
        turns = tl.load(PLACE + i * 3 + axis, mask=here, other=0).to(tl.int64) & 0xFFFFFFFF
        steps = turns * points
        first = (steps >> 32).to(tl.int32)
        w = (steps & 0xFFFFFFFF).to(tl.float64) / TURN
        tl.store(FIRST + i * 3 + axis, first, mask=here)
        key = key * (points // SIDE) + first // SIDE
        for kind in tl.static_range(2):
            for d in tl.static_range(P):
                value = w * 0
                for n in tl.static_range(P):
                    value = value * w + tl.load(POLYNOMIALS + (kind * P + d) * P + P - 1 - n)
                at = ((i * 2 + kind) * 3 + axis) * P + d
                tl.store(WEIGHTS + at, value.to(tl.float32), mask=here)
    tl.store(KEY + i, tl.where(slot < 0, last, key), mask=here)


@triton.jit
def _along(FIRST, WEIGHTS, i, there, point, points, AXIS: tl.constexpr, P: tl.constexpr):
    """Weights [points, atoms] along an axis of points [points,1] for atoms i [1,atoms]."""
    below = tl.load(FIRST + i * 3 + AXIS, mask=there, other=0) - point
    below = tl.where(below < 0, below + points, below)
    return tl.load(WEIGHTS + (i * 6 + AXIS) * P + below, mask=there & (below < P), other=0.0)


@triton.jit(do_not_specialize=["apart", "nx", "ny", "nz"])
def spread(
    ORDER, STARTS, FIRST, WEIGHTS, Q, GRID, apart, nx, ny, nz, P: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr,
    CHANNELS: tl.constexpr, SIDE: tl.constexpr, POINTS: tl.constexpr, ATOMS: tl.constexpr,
):  # fmt: skip
    """Charges on the points of a tile, from the atoms of this tile and of those above it along each axis."""
    tx, ty, tz = nx // SIDE, ny // SIDE, nz // SIDE
    REACH: tl.constexpr = (P + SIDE - 2) // SIDE + 1  # tiles along an axis
    tile, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    bx, by, bz = tile // (ty * tz), tile // tz % ty, tile % tz
    point = tl.arange(0, POINTS)
    x = (bx * SIDE + point // (SIDE * SIDE))[:, None]
    y = (by * SIDE + point // SIDE % SIDE)[:, None]
    z = (bz * SIDE + point % SIDE)[:, None]
    m = tl.arange(0, CHANNELS)
    channel = (m // WIDE).to(tl.int64) * apart + m % WIDE
    total = tl.zeros((POINTS, CHANNELS), tl.float32)
    # Tiles along the last axis follow each other in the order of the atoms, up to the end of the cell.
    for line in range(REACH * REACH * 2):
        cx, cy = (bx + line // (2 * REACH)) % tx, (by + line // 2 % REACH) % ty
        low, high = bz, tl.minimum(bz + REACH, tz)
        if line % 2 == 1:
            low, high = 0 * bz, tl.maximum(bz + REACH - tz, 0)
        row = slot * (tx * ty * tz) + (cx * ty + cy) * tz
        end = tl.load(STARTS + row + high)
        for start in range(tl.load(STARTS + row + low), end, ATOMS):
            at = start + tl.arange(0, ATOMS)
            there = at < end
            i = tl.load(ORDER + at, mask=there, other=0)
            weight = _along(FIRST, WEIGHTS, i[None, :], there[None, :], x, nx, 0, P)
            weight *= _along(FIRST, WEIGHTS, i[None, :], there[None, :], y, ny, 1, P)
            weight *= _along(FIRST, WEIGHTS, i[None, :], there[None, :], z, nz, 2, P)
            q = tl.load(Q + i[:, None] * WIDE + channel[None, :], mask=there[:, None] & (m < M)[None, :], other=0.0)
            total += tl.dot(weight, q, input_precision="tf32x3")
    place = ((x * ny + y) * nz + z).to(tl.int64)
    tl.store(GRID + (slot * M + m)[None, :] * (nx * ny * nz) + place, total, mask=(m < M)[None, :])


@triton.jit
def wave_vectors(n0, n1, n2, dual):
    """(k, k², whether k is not zero) of whole numbers of a reciprocal lattice; 1 in place of k² = 0."""
    kx = TWO_PI * (n0 * tl.load(dual) + n1 * tl.load(dual + 3) + n2 * tl.load(dual + 6))
    ky = TWO_PI * (n0 * tl.load(dual + 1) + n1 * tl.load(dual + 4) + n2 * tl.load(dual + 7))
    kz = TWO_PI * (n0 * tl.load(dual + 2) + n1 * tl.load(dual + 5) + n2 * tl.load(dual + 8))
    square = kx * kx + ky * ky + kz * kz
    used = square > 0
    return kx, ky, kz, tl.where(used, square, 1.0), used


@triton.jit(do_not_specialize=["num_waves", "nx", "ny", "nz"])
def convolve(
    DUAL, VOLUME, SPLINES, W, PERIODIC, WAVES, VECTOR, POWER, num_waves, nx, ny, nz, ALPHA: tl.constexpr,
    BACKGROUND: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Multiplies some waves of a system by amplitudes. The first is the uniform background."""
    slot = tl.program_id(1).to(tl.int64)
    s = tl.load(PERIODIC + slot).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = k < num_waves
    half = nz // 2 + 1
    a, b, c = k // (ny * half), k // half % ny, k % half
    n0 = tl.where(2 * a > nx, a - nx, a).to(tl.float64)
    n1 = tl.where(2 * b > ny, b - ny, b).to(tl.float64)
    n2 = c.to(tl.float64)
    dual = DUAL + s * 9
    kx, ky, kz, square, used = wave_vectors(n0, n1, n2, dual)
    volume = tl.load(VOLUME + s)
    splines = tl.load(SPLINES + a, mask=kept, other=0.0) * tl.load(SPLINES + nx + b, mask=kept, other=0.0)
    splines *= tl.load(SPLINES + nx + ny + c, mask=kept, other=0.0)
    amplitude = 2 * TWO_PI / volume * splines * tl.exp(-square / (4 * ALPHA * ALPHA)) / square
    amplitude = tl.where(used, amplitude, tl.where(k == 0, -BACKGROUND / volume, 0.0))
    at = s * num_waves + k
    store3(VECTOR + at * 3, (kx, ky, kz), kept, 1)
    factor, power = amplitude.to(tl.float32), tl.zeros((BLOCK,), tl.float32)
    for m in range(M):
        wave = WAVES + ((slot * M + m) * num_waves + k) * 2
        real, imaginary = tl.load(wave, mask=kept, other=0.0), tl.load(wave + 1, mask=kept, other=0.0)
        power += tl.load(W + m) * (real * real + imaginary * imaginary)
        tl.store(wave, factor * real, mask=kept)
        tl.store(wave + 1, factor * imaginary, mask=kept)
    # All but those of the first plane stand for two.
    tl.store(POWER + at, tl.where(c == 0, 1.0, 2.0) * amplitude * power.to(tl.float64), mask=kept)


@triton.jit(do_not_specialize=["num_atoms", "apart", "nx", "ny", "nz"])
def gather(
    ORDER, SYSTEM, SLOT, DUAL, FIRST, WEIGHTS, FIELD, Q, W, FIELDS, SLOPES, num_atoms, apart, nx, ny, nz,
    P: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr, FORCES: tl.constexpr,
):  # fmt: skip
    """Potentials at some atoms, and gradients in their positions."""
    at = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    here, m = at < num_atoms, tl.arange(0, CHANNELS)
    i = tl.load(ORDER + at, mask=here, other=0)
    system = tl.load(SYSTEM + i, mask=here, other=0)
    slot = tl.load(SLOT + system, mask=here, other=-1).to(tl.int64)
    seen = here & (slot >= 0)
    fx = tl.load(FIRST + i * 3, mask=seen, other=0)
    fy = tl.load(FIRST + i * 3 + 1, mask=seen, other=0)
    fz = tl.load(FIRST + i * 3 + 2, mask=seen, other=0)
    field = tl.zeros((ATOMS, CHANNELS), tl.float32)
    x, y, z = field, field, field
    mask = seen[:, None] & (m < M)[None, :]
    for dx in range(P):
        px = tl.where(fx < dx, fx - dx + nx, fx - dx)
        wx = tl.load(WEIGHTS + i * (6 * P) + dx, mask=seen, other=0.0)
        vx = tl.load(WEIGHTS + (i * 6 + 3) * P + dx, mask=seen, other=0.0)
        for dy in range(P):
            py = tl.where(fy < dy, fy - dy + ny, fy - dy)
            wy = tl.load(WEIGHTS + (i * 6 + 1) * P + dy, mask=seen, other=0.0)
            vy = tl.load(WEIGHTS + (i * 6 + 4) * P + dy, mask=seen, other=0.0)
            row = slot * (nx * ny * nz) + (px * ny + py) * nz
            for dz in tl.static_range(P):
                pz = tl.where(fz < dz, fz - dz + nz, fz - dz)
                wz = tl.load(WEIGHTS + (i * 6 + 2) * P + dz, mask=seen, other=0.0)
                near = tl.load(FIELD + (row + pz)[:, None] * M + m[None, :], mask=mask, other=0.0)
                field += (wx * wy * wz)[:, None] * near
                if FORCES:
                    vz = tl.load(WEIGHTS + (i * 6 + 5) * P + dz, mask=seen, other=0.0)
                    x += (vx * wy * wz)[:, None] * near
                    y += (wx * vy * wz)[:, None] * near
                    z += (wx * wy * vz)[:, None] * near
    tl.store(FIELDS + i.to(tl.int64)[:, None] * CHANNELS + m[None, :], field, mask=here[:, None])
    if FORCES:
        channel = (m // WIDE).to(tl.int64) * apart + m % WIDE
        wq = tl.load(Q + i.to(tl.int64)[:, None] * WIDE + channel[None, :], mask=mask, other=0.0)
        wq *= tl.load(W + m, mask=m < M, other=0.0)[None, :]
        # From steps of the grid to Å.
        sx, sy, sz = nx * tl.sum(wq * x, 1), ny * tl.sum(wq * y, 1), nz * tl.sum(wq * z, 1)
        dual = DUAL + system * 9
        for axis in tl.static_range(3):
            slope = sx * tl.load(dual + axis, mask=seen, other=0.0).to(tl.float32)
            slope += sy * tl.load(dual + 3 + axis, mask=seen, other=0.0).to(tl.float32)
            slope += sz * tl.load(dual + 6 + axis, mask=seen, other=0.0).to(tl.float32)
            tl.store(SLOPES + i * 3 + axis, slope, mask=here)


class MeshSum:
    """The launches for a list of vectors on a mesh. channels, wide: as for `DirectReciprocal`.

    Attributes:
        found: Potentials [1,N,CHANNELS] and gradients in positions [1,N,3] of the last run.
    """

    def __init__(self, vectors: KVectors, channels: dict[str, int], wide: dict[str, int]) -> None:
        mesh, shape, device = vectors.mesh, vectors.shape, vectors.indices.device
        assert mesh is not None
        self.alpha, self.background = vectors.splitting.alpha, vectors.splitting.background
        self.shape, self.channels, self.wide = shape, channels, wide
        self.order = dict(P=mesh.order)
        self.tiles = math.prod(shape) // POINTS
        self.count = len(vectors.periodic)
        self.num_waves = shape[0] * shape[1] * (shape[2] // 2 + 1)
        self.polynomials = polynomials(mesh.order).to(device)
        self.splines = torch.cat([wave_amplitudes(mesh.order, points, device) for points in shape])
        slots = torch.full((len(vectors.pbc),), -1, dtype=torch.int32)
        slots[list(vectors.periodic)] = torch.arange(self.count, dtype=torch.int32)
        self.slots = slots.to(device)
        self.ends = torch.arange(self.count * self.tiles + 1, dtype=torch.int32, device=device)

    @isolated
    def run(
        self, place: Tensor, system_index: Tensor, dual: Tensor, volume: Tensor, charges: Tensor, weights: Tensor,
        periodic: Tensor, *, forces: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """(vectors [S,K,3], their power [S,K]); charges: [M/wide,N,wide], float32."""
        n, m, apart = len(place), self.channels["M"], charges.stride(0)
        first, key = place.new_empty(n, 3), place.new_empty(n)
        values = charges.new_empty(n, 2, 3, self.order["P"])
        weigh[(triton.cdiv(n, ROWS),)](
            place, system_index, self.slots, self.polynomials, first, values, key, n, self.count * self.tiles,
            *self.shape, **self.order, SIDE=SIDE, ROWS=ROWS,
        )  # fmt: skip
        keys, order = torch.sort(key, stable=True)
        starts = torch.searchsorted(keys, self.ends, out_int32=True)
        grid = charges.new_empty(self.count, m, *self.shape)
        spread[(self.tiles, self.count)](
            order, starts, first, values, charges, grid, apart, *self.shape, **self.order, **self.channels, **self.wide,
            SIDE=SIDE, POINTS=POINTS, ATOMS=NEAR,
        )  # fmt: skip
        waves = torch.fft.rfftn(grid, dim=(2, 3, 4)).contiguous()
        vector = dual.new_empty(len(dual), self.num_waves, 3)
        power = dual.new_zeros(len(dual), self.num_waves)
        convolve[(triton.cdiv(self.num_waves, WAVES), self.count)](
            dual, volume, self.splines, weights, periodic, torch.view_as_real(waves), vector, power, self.num_waves,
            *self.shape, ALPHA=self.alpha, BACKGROUND=self.background, M=m, BLOCK=WAVES,
        )  # fmt: skip
        # Not divided by the number of points.
        field = torch.fft.irfftn(waves, s=self.shape, dim=(2, 3, 4), norm="forward")
        field = field.flatten(2).transpose(1, 2).contiguous()
        self.found = (charges.new_empty(1, n, self.channels["CHANNELS"]), charges.new_empty(1, n, 3))
        gather[(triton.cdiv(n, GATHERED),)](
            order, system_index, self.slots, dual, first, values, field, charges, weights, *self.found, n, apart,
            *self.shape, **self.order, **self.channels, **self.wide, ATOMS=GATHERED, FORCES=forces, num_warps=1,
        )  # fmt: skip
        return vector, power
