"""Coulomb energies of a batch with forces, gradients in the charges and virial, in one pass.

For steps that need no further derivatives: energy and derivatives of an atom are sums over the same partners.
All pairs of systems without periodic directions are products of blocks: S Q for the potentials, with S the shape at
every distance, and Q Qᵀ for the forces. With a cutoff, kernels walk the rows of a list. Sums have a fixed order, and
nothing synchronises with the host.

::

  | buffer | shape | holds |
  |---|---|---|
  | X | [N,3] | coordinates, float32 or float64; differences are taken before rounding |
  | Q | [M/WIDE,N,WIDE] | charges in M channels, WIDE of them in a block, `apart` numbers from one block to the next |
  | W | [M] | weights of the channels, 0 of those that pad a block |
  | E | [N] | energies, float64, added to |
  | F, PULL, VIRIAL | [N,3], as Q, [N,9] | forces, derivatives in Q and in a strain; float32, added to if ADD |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmdx.engines.gpu.triton.nine import load3, store3
from torchmdx.models.priors.open_pairs import open_systems
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch

if TYPE_CHECKING:
    from torchmdx.models.priors.coulomb import Coulomb


PI, TWO_OVER_ROOT_PI = tl.constexpr(math.pi), tl.constexpr(2 / math.sqrt(math.pi))


@triton.jit
def shape_of(r, LOWER: tl.constexpr, UPPER: tl.constexpr, SWITCH: tl.constexpr):
    """(s, ds/dr) of s(r) = (1 - d(r)) / r: see `torchmdx.models.priors.coulomb.Coulomb`.

    UPPER: the damping length, or with SWITCH the end of the switch, which begins at LOWER.
    """
    if SWITCH:
        x = (r - LOWER) / (UPPER - LOWER)
        inside = (x > 0) & (x < 1)
        angle = PI * tl.where(inside, x, 0.0)
        u = tl.where(inside, 0.5 - 0.5 * tl.cos(angle), tl.where(x > 0, 1.0, 0.0))
        slope = 0.5 * PI / (UPPER - LOWER) * tl.sin(angle)
    else:
        square = r / UPPER * (r / UPPER)
        inside = square < 1 - 1e-3
        gap = 1 - tl.where(inside, square, 0.0)
        d = tl.where(inside, tl.exp(1 - 1 / gap), 0.0)
        u = 1 - d
        slope = d * 2 * r / (UPPER * UPPER * gap * gap)
    return u / r, (slope - u / r) / r


FEWEST = 16  # rows, columns and channels of a product of blocks
COLUMNS, DEPTH = 64, 32  # partners at a time, of 16 atoms and of one
MOST_PARTS = 8  # of the partners of an atom: few programs leave most of a GPU idle


@triton.jit
def open_atoms(X, SYSTEM, OPEN, num_atoms, ROWS: tl.constexpr):
    """(atoms i [ROWS] of a program, whether they exist, their systems, whether those are open, x, y, z)."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = i < num_atoms
    system = tl.load(SYSTEM + i, mask=here, other=-1)
    seen = here & (tl.load(OPEN + system, mask=here, other=0) != 0)
    x, y, z = load3(X + i * 3, here, 1)
    return i, here, system, seen, x, y, z


@triton.jit
def partner_range(SYSTEM, PTR, seen, num_atoms, ROWS: tl.constexpr):
    """(first, end) of the atoms in the systems of a program's atoms, which are adjacent; empty if none is open."""
    first = tl.load(PTR + tl.load(SYSTEM + tl.program_id(0) * ROWS))
    last = tl.minimum(tl.program_id(0) * ROWS + ROWS, num_atoms) - 1
    end = tl.load(PTR + tl.load(SYSTEM + last) + 1)
    if tl.max(seen.to(tl.int32), 0) == 0:
        end = first
    return first, end


@triton.jit
def partners(X, SYSTEM, i, system, seen, j, end):
    """(whether atoms j [COLUMNS] exist, which pairs [ROWS,COLUMNS] interact, x, y and z of j [1,COLUMNS])."""
    there = j < end
    pair = seen[:, None] & there[None, :] & (i[:, None] != j[None, :])
    pair = pair & (system[:, None] == tl.load(SYSTEM + j, mask=there, other=-1)[None, :])
    x, y, z = load3(X + j * 3, there, 1)
    return there, pair, x[None, :], y[None, :], z[None, :]


@triton.jit
def put(at, value, mask, ADD: tl.constexpr):
    """Stores a value, or adds it to what is there."""
    if ADD:
        value += tl.load(at) if mask is None else tl.load(at, mask=mask, other=0.0)
    tl.store(at, value, mask=mask)


@triton.jit
def put3(at, x, y, z, mask, ADD: tl.constexpr):
    """The same for the components of vectors."""
    put(at, x, mask, ADD)
    put(at + 1, y, mask, ADD)
    put(at + 2, z, mask, ADD)


@triton.jit
def _store_pairs(
    E, F, PULL, VIRIAL, i, seen, own, at, w, wq, field, fx, fy, fz, STRENGTH: tl.constexpr, STRESS: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The results of rows of atoms, from the sums over their partners."""
    put(E + i, (0.5 * STRENGTH * tl.sum(wq * field, 1)).to(tl.float64), seen, True)
    put(PULL + at, STRENGTH * w * field, own, ADD)
    put3(F + i * 3, STRENGTH * fx, STRENGTH * fy, STRENGTH * fz, seen, ADD)
    if STRESS and not ADD:
        for k in tl.static_range(9):
            tl.store(VIRIAL + i * 9 + k, tl.zeros((ROWS,), tl.float32), mask=seen)


@triton.jit(do_not_specialize=["num_atoms", "apart"])
def sum_pairs(
    X, Q, W, SYSTEM, OPEN, E, F, PULL, VIRIAL, FIELDS, FORCES, num_atoms, apart,
    STRENGTH: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    STRESS: tl.constexpr, ADD: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The results of `every_pair`, from the sums over parts of the partners that it has left."""
    i, _, _, seen, _, _, _ = open_atoms(X, SYSTEM, OPEN, num_atoms, ROWS)
    m = tl.arange(0, CHANNELS)
    w = tl.load(W + m, mask=m < M, other=0.0)[None, :]
    at = i.to(tl.int64)[:, None] * WIDE + (m // WIDE).to(tl.int64)[None, :] * apart + (m % WIDE)[None, :]
    own = seen[:, None] & (m < M)[None, :]
    field = tl.zeros((ROWS, CHANNELS), tl.float32)
    fx, fy, fz = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for part in tl.static_range(PARTS):
        row = part * num_atoms + i
        field += tl.load(FIELDS + row.to(tl.int64)[:, None] * CHANNELS + m[None, :], mask=seen[:, None], other=0.0)
        x, y, z = load3(FORCES + row * 3, seen, 1)
        fx, fy, fz = fx + x, fy + y, fz + z
    wq = tl.load(Q + at, mask=own, other=0.0) * w
    _store_pairs(E, F, PULL, VIRIAL, i, seen, own, at, w, wq, field, fx, fy, fz, STRENGTH, STRESS, ADD, ROWS)


@triton.jit(do_not_specialize=["num_atoms", "apart"])
def every_pair(
    X, Q, W, SYSTEM, PTR, OPEN, E, F, PULL, VIRIAL, FIELDS, FORCES, num_atoms, apart,
    STRENGTH: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, SWITCH: tl.constexpr, M: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, STRESS: tl.constexpr,
    ADD: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Rows of atoms in open systems, with all atoms of their system; VIRIAL there is zero: they have no cell.

    PARTS: if several, a program takes a part of the partners, and leaves its sums in FIELDS [PARTS,N,CHANNELS] and
    FORCES [PARTS,N,3].
    """
    i, _, system, seen, x, y, z = open_atoms(X, SYSTEM, OPEN, num_atoms, ROWS)
    m = tl.arange(0, CHANNELS)
    w = tl.load(W + m, mask=m < M, other=0.0)[None, :]
    channel = (m // WIDE).to(tl.int64)[None, :] * apart + (m % WIDE)[None, :]
    at = i.to(tl.int64)[:, None] * WIDE + channel
    own = seen[:, None] & (m < M)[None, :]
    wq = tl.load(Q + at, mask=own, other=0.0) * w
    field = tl.zeros((ROWS, CHANNELS), tl.float32)
    fx, fy, fz = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    first, end = partner_range(SYSTEM, PTR, seen, num_atoms, ROWS)
    part = tl.program_id(1)
    for start in range(first + part * COLUMNS, end, PARTS * COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        there, pair, xj, yj, zj = partners(X, SYSTEM, i, system, seen, j, end)
        ux = (xj - x[:, None]).to(tl.float32)
        uy = (yj - y[:, None]).to(tl.float32)
        uz = (zj - z[:, None]).to(tl.float32)
        r = tl.sqrt(tl.where(pair, ux * ux + uy * uy + uz * uz, 1.0))
        s, slope = shape_of(r, LOWER, UPPER, SWITCH)
        s = tl.where(pair, s, 0.0)
        other = tl.load(Q + j.to(tl.int64)[:, None] * WIDE + channel, mask=there[:, None] & (m < M)[None, :], other=0.0)
        product = tl.dot(wq, other.T, input_precision="tf32x3")
        field += tl.dot(s, other, input_precision="tf32x3")
        force = tl.where(pair, slope / r, 0.0) * product
        fx += tl.sum(force * ux, 1)
        fy += tl.sum(force * uy, 1)
        fz += tl.sum(force * uz, 1)
    if PARTS == 1:
        _store_pairs(E, F, PULL, VIRIAL, i, seen, own, at, w, wq, field, fx, fy, fz, STRENGTH, STRESS, ADD, ROWS)
    else:
        row = part * num_atoms + i
        tl.store(FIELDS + row.to(tl.int64)[:, None] * CHANNELS + m[None, :], field, mask=seen[:, None])
        store3(FORCES + row * 3, (fx, fy, fz), seen, 1)


@triton.jit(do_not_specialize=["apart"])
def within_cutoff(
    X, CELL, Q, W, SYSTEM, OPEN, ROW_PTR, SOURCE, SHIFTS, E, F, PULL, VIRIAL, apart,
    STRENGTH: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, SWITCH: tl.constexpr, CUTOFF: tl.constexpr,
    SQUARE: tl.constexpr, LEVEL: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr, EVERY: tl.constexpr,
    DEPTH: tl.constexpr, CHANNELS: tl.constexpr, STRESS: tl.constexpr, ADD: tl.constexpr, ALPHA: tl.constexpr,
):  # fmt: skip
    """The row of an atom in a system with a cutoff (EVERY: in any system). g(r) = 1 / r + SQUARE r² - LEVEL.

    ALPHA: unless 0, erf(ALPHA r) / r is subtracted, which an Ewald sum has over the reciprocal lattice.
    """
    i = tl.program_id(0)
    system = tl.load(SYSTEM + i).to(tl.int64)
    closed = tl.load(OPEN + system) == 0
    if closed | EVERY:
        m = tl.arange(0, CHANNELS)
        x, y, z = load3(X + i * 3, None, 1)
        w = tl.load(W + m, mask=m < M, other=0.0)
        channel = (m // WIDE).to(tl.int64) * apart + m % WIDE
        wq = tl.load(Q + i.to(tl.int64) * WIDE + channel, mask=m < M, other=0.0) * w
        field = tl.zeros((CHANNELS,), tl.float32)
        fx, fy, fz = tl.zeros((DEPTH,), tl.float32), tl.zeros((DEPTH,), tl.float32), tl.zeros((DEPTH,), tl.float32)
        if STRESS:
            xx, yy, zz, xy, xz, yz = fx, fx, fx, fx, fx, fx
        end = tl.load(ROW_PTR + i + 1)
        for start in range(tl.load(ROW_PTR + i), end, DEPTH):
            e = start + tl.arange(0, DEPTH)
            mask = e < end
            j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)
            xj, yj, zj = load3(X + j * 3, mask, 1)
            dx, dy, dz = xj - x, yj - y, zj - z
            for k in tl.static_range(3):
                n = tl.load(SHIFTS + e.to(tl.int64) * 3 + k, mask=mask, other=0).to(x.dtype)
                dx += n * tl.load(CELL + system * 9 + 3 * k)
                dy += n * tl.load(CELL + system * 9 + 3 * k + 1)
                dz += n * tl.load(CELL + system * 9 + 3 * k + 2)
            dx, dy, dz = dx.to(tl.float32), dy.to(tl.float32), dz.to(tl.float32)
            r = tl.sqrt(dx * dx + dy * dy + dz * dz)
            inside = mask & (r < CUTOFF)
            r = tl.where(inside, r, CUTOFF)
            s, slope = shape_of(r, LOWER, UPPER, SWITCH)
            rest = 1.0 + r * (SQUARE * r * r - LEVEL)
            slope = slope * rest + s * (3.0 * SQUARE * r * r - LEVEL)
            s = s * rest
            if ALPHA > 0:
                far = tl.erf(ALPHA * r) / r
                slope -= (ALPHA * TWO_OVER_ROOT_PI * tl.exp(-ALPHA * ALPHA * r * r) - far) / r
                s -= far
            s = tl.where(inside, s, 0.0)
            other = tl.load(
                Q + j[:, None] * WIDE + channel[None, :], mask=inside[:, None] & (m < M)[None, :], other=0.0
            )
            field += tl.sum(s[:, None] * other, 0)
            force = tl.where(inside, slope / r, 0.0) * tl.sum(wq[None, :] * other, 1)
            fx += force * dx
            fy += force * dy
            fz += force * dz
            if STRESS:
                xx += force * dx * dx
                yy += force * dy * dy
                zz += force * dz * dz
                xy += force * dx * dy
                xz += force * dx * dz
                yz += force * dy * dz
        put(E + i, (0.5 * STRENGTH * tl.sum(wq * field, 0)).to(tl.float64), None, True)
        put(PULL + i.to(tl.int64) * WIDE + channel, STRENGTH * w * field, m < M, ADD)
        put3(F + i * 3, STRENGTH * tl.sum(fx, 0), STRENGTH * tl.sum(fy, 0), STRENGTH * tl.sum(fz, 0), None, ADD)
        if STRESS:
            half = 0.5 * STRENGTH
            sxy, sxz, syz = half * tl.sum(xy, 0), half * tl.sum(xz, 0), half * tl.sum(yz, 0)
            sxx, syy, szz = half * tl.sum(xx, 0), half * tl.sum(yy, 0), half * tl.sum(zz, 0)
            virial = (sxx, sxy, sxz, sxy, syy, syz, sxz, syz, szz)
            for k in tl.static_range(9):
                put(VIRIAL + i * 9 + k, virial[k], None, ADD)


@dataclass(frozen=True, eq=False)
class Found:
    """Energies [N] float64, forces [N,3], derivatives in the charges, and in a strain [N,3,3] if that is wanted."""

    energies: Tensor
    forces: Tensor
    pull: Tensor
    virial: Tensor | None


class DirectCoulomb:
    """The launches of a prior for batches of one shape, with or without periodic directions.

    Args:
        count, wide: Channels in a block of charges, and numbers, of which those beyond the channels pad it.
    """

    def __init__(self, prior: Coulomb, batch: Batch, count: int = 1, wide: int = 1) -> None:
        self.prior = prior
        weights = prior.weights.detach().float().reshape(-1, count)
        self.weights = torch.nn.functional.pad(weights, (0, wide - count)).flatten().contiguous()
        config = prior.config
        lower, upper = (0.0, float(config.damping)) if config.switch is None else config.switch
        square, level = prior.field
        channels = max(FEWEST, triton.next_power_of_2(len(self.weights)))
        self.distances = dict(LOWER=lower, UPPER=upper, SWITCH=config.switch is not None)
        self.channels = dict(STRENGTH=config.strength, M=len(self.weights), WIDE=wide, CHANNELS=channels)
        self.field = dict(
            CUTOFF=float(config.cutoff), SQUARE=square, LEVEL=level, ALPHA=prior.alpha, EVERY=not prior.sees_all_pairs
        )
        self.periodic, device = bool(batch.pbc.any()), batch.positions.device
        self.open = None if self.periodic else torch.ones(max(batch.num_systems, 1), dtype=torch.int32, device=device)
        self.ends = torch.arange(batch.num_systems + 1, dtype=batch.system_index.dtype, device=device)
        alone = torch.tensor([0, batch.num_atoms], dtype=torch.int32, device=device)
        self.bounds = alone if batch.num_systems == 1 else None  # of the atoms of a system
        partners = batch.num_atoms // max(batch.num_systems, 1)
        self.parts = min(MOST_PARTS, triton.cdiv(max(partners, 1), COLUMNS))
        rows = batch.num_atoms * self.parts if self.parts > 1 else 0
        new = self.weights.new_zeros
        self.scratch = (new(rows, channels), new(rows, 3))

    def run(self, batch: Batch, edges: Edges, charges: Tensor, out: Found, *, add: bool) -> None:
        """Adds the prior's energies to those in `out`; writes the other results or, if `add`, adds to them too.

        charges, out.pull: [M/wide,N,wide], float32. edges must cover the prior's cutoff.
        """
        open_ = open_systems(batch).int() if self.open is None else self.open
        index, stress = batch.system_index, out.virial is not None
        given = (out.energies, out.forces, out.pull, out.forces if out.virial is None else out.virial)
        both, apart = dict(STRESS=stress, ADD=add), charges.stride(0)
        if self.prior.sees_all_pairs:
            bounds = torch.searchsorted(index, self.ends, out_int32=True) if self.bounds is None else self.bounds
            blocks, ways = triton.cdiv(batch.num_atoms, FEWEST), dict(ROWS=FEWEST, PARTS=self.parts, num_warps=4)
            every_pair[(blocks, self.parts)](
                batch.positions, charges, self.weights, index, bounds, open_, *given, *self.scratch, batch.num_atoms,
                apart, **self.distances, **self.channels, **both, **ways, COLUMNS=COLUMNS,
            )  # fmt: skip
            if self.parts > 1:
                sum_pairs[(blocks,)](
                    batch.positions, charges, self.weights, index, open_, *given, *self.scratch, batch.num_atoms, apart,
                    **self.channels, **both, **ways,
                )  # fmt: skip
        if self.periodic or not self.prior.sees_all_pairs:
            within_cutoff[(batch.num_atoms,)](
                batch.positions, batch.cell, charges, self.weights, index, open_, edges.row_ptr, edges.source,
                edges.shifts, *given, apart, **self.distances, **self.channels, **both, **self.field, DEPTH=DEPTH,
                num_warps=1,
            )  # fmt: skip


def evaluate(prior: Coulomb, batch: Batch, edges: Edges, charges: Tensor, *, stress: bool) -> Found:
    """Energies and derivatives of a prior, from charges [N,M] float32 and edges that cover its cutoff."""
    new = charges.new_empty
    energies = charges.new_zeros(len(charges), dtype=torch.float64)
    virial = new(len(charges), 3, 3) if stress else None
    blocks = charges.T.contiguous()[..., None]
    found = Found(energies, new(len(charges), 3), torch.empty_like(blocks), virial)
    DirectCoulomb(prior, batch).run(batch, edges, blocks, found, add=False)
    return replace(found, pull=found.pull[..., 0].T)
