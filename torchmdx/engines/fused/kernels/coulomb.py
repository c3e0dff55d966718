"""Coulomb energies of a batch with forces, gradients in the charges and virial, in one pass.

For steps that need no further derivatives: energy and derivatives of an atom are sums over the same partners.
All pairs of systems without periodic directions are products of blocks: S Q for the potentials, with S the shape at
every distance, and Q Qᵀ for the forces. With a cutoff, kernels walk the rows of a list. Sums have a fixed order, and
nothing synchronises with the host.

| buffer | shape | holds |
|---|---|---|
| X | [N,3] | coordinates, float32 or float64; differences are taken before rounding |
| Q, W | [N,M], [M] | charges, and the weights of their channels |
| E, F, PULL, VIRIAL | [N], [N,3], [N,M], [N,9] | energies, forces, derivatives in Q and in a strain; float32 |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmdx.models.priors.open_pairs import open_systems
from torchmdx.neighbors.edges import Edges
from torchmdx.system import Batch

if TYPE_CHECKING:
    from torchmdx.models.priors.coulomb import Coulomb


PI = tl.constexpr(math.pi)


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


@triton.jit
def open_atoms(X, SYSTEM, OPEN, num_atoms, ROWS: tl.constexpr):
    """(atoms i [ROWS] of a program, whether they exist, their systems, whether those are open, x, y, z)."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = i < num_atoms
    system = tl.load(SYSTEM + i, mask=here, other=-1)
    seen = here & (tl.load(OPEN + system, mask=here, other=0) != 0)
    x = tl.load(X + i * 3, mask=here, other=0.0)
    y = tl.load(X + i * 3 + 1, mask=here, other=0.0)
    z = tl.load(X + i * 3 + 2, mask=here, other=0.0)
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
    x = tl.load(X + j * 3, mask=there, other=0.0)[None, :]
    y = tl.load(X + j * 3 + 1, mask=there, other=0.0)[None, :]
    z = tl.load(X + j * 3 + 2, mask=there, other=0.0)[None, :]
    return there, pair, x, y, z


@triton.jit
def every_pair(
    X, Q, W, SYSTEM, PTR, OPEN, E, F, PULL, VIRIAL, num_atoms,
    STRENGTH: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, SWITCH: tl.constexpr, M: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, STRESS: tl.constexpr,
):  # fmt: skip
    """Rows of atoms in open systems, with all atoms of their system; VIRIAL there is zero: they have no cell."""
    i, _, system, seen, x, y, z = open_atoms(X, SYSTEM, OPEN, num_atoms, ROWS)
    m = tl.arange(0, CHANNELS)
    w = tl.load(W + m, mask=m < M, other=0.0)[None, :]
    at = i.to(tl.int64)[:, None] * M + m[None, :]
    own = seen[:, None] & (m < M)[None, :]
    wq = tl.load(Q + at, mask=own, other=0.0) * w
    field = tl.zeros((ROWS, CHANNELS), tl.float32)
    fx, fy, fz = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    first, end = partner_range(SYSTEM, PTR, seen, num_atoms, ROWS)
    for start in range(first, end, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        there, pair, xj, yj, zj = partners(X, SYSTEM, i, system, seen, j, end)
        ux = (xj - x[:, None]).to(tl.float32)
        uy = (yj - y[:, None]).to(tl.float32)
        uz = (zj - z[:, None]).to(tl.float32)
        r = tl.sqrt(tl.where(pair, ux * ux + uy * uy + uz * uz, 1.0))
        s, slope = shape_of(r, LOWER, UPPER, SWITCH)
        s = tl.where(pair, s, 0.0)
        other = tl.load(Q + j.to(tl.int64)[:, None] * M + m[None, :], mask=there[:, None] & (m < M)[None, :], other=0.0)
        product = tl.dot(wq, other.T, input_precision="tf32x3")
        field += tl.dot(s, other, input_precision="tf32x3")
        force = tl.where(pair, slope / r, 0.0) * product
        fx += tl.sum(force * ux, 1)
        fy += tl.sum(force * uy, 1)
        fz += tl.sum(force * uz, 1)
    tl.store(E + i, 0.5 * STRENGTH * tl.sum(wq * field, 1), mask=seen)
    tl.store(PULL + at, STRENGTH * w * field, mask=own)
    tl.store(F + i * 3, STRENGTH * fx, mask=seen)
    tl.store(F + i * 3 + 1, STRENGTH * fy, mask=seen)
    tl.store(F + i * 3 + 2, STRENGTH * fz, mask=seen)
    if STRESS:
        for k in tl.static_range(9):
            tl.store(VIRIAL + i * 9 + k, tl.zeros((ROWS,), tl.float32), mask=seen)


@triton.jit
def within_cutoff(
    X, CELL, Q, W, SYSTEM, OPEN, ROW_PTR, SOURCE, SHIFTS, E, F, PULL, VIRIAL,
    STRENGTH: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, SWITCH: tl.constexpr, CUTOFF: tl.constexpr,
    SQUARE: tl.constexpr, LEVEL: tl.constexpr, M: tl.constexpr, EVERY: tl.constexpr, DEPTH: tl.constexpr,
    CHANNELS: tl.constexpr, STRESS: tl.constexpr,
):  # fmt: skip
    """The row of an atom in a system with a cutoff (EVERY: in any system). g(r) = 1 / r + SQUARE r² - LEVEL."""
    i = tl.program_id(0)
    system = tl.load(SYSTEM + i).to(tl.int64)
    closed = tl.load(OPEN + system) == 0
    if closed | EVERY:
        m = tl.arange(0, CHANNELS)
        x, y, z = tl.load(X + i * 3), tl.load(X + i * 3 + 1), tl.load(X + i * 3 + 2)
        w = tl.load(W + m, mask=m < M, other=0.0)
        wq = tl.load(Q + i.to(tl.int64) * M + m, mask=m < M, other=0.0) * w
        field = tl.zeros((CHANNELS,), tl.float32)
        fx, fy, fz = tl.zeros((DEPTH,), tl.float32), tl.zeros((DEPTH,), tl.float32), tl.zeros((DEPTH,), tl.float32)
        if STRESS:
            xx, yy, zz, xy, xz, yz = fx, fx, fx, fx, fx, fx
        end = tl.load(ROW_PTR + i + 1)
        for start in range(tl.load(ROW_PTR + i), end, DEPTH):
            e = start + tl.arange(0, DEPTH)
            mask = e < end
            j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)
            dx = tl.load(X + j * 3, mask=mask, other=0.0) - x
            dy = tl.load(X + j * 3 + 1, mask=mask, other=0.0) - y
            dz = tl.load(X + j * 3 + 2, mask=mask, other=0.0) - z
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
            s = tl.where(inside, s * rest, 0.0)
            other = tl.load(Q + j[:, None] * M + m[None, :], mask=inside[:, None] & (m < M)[None, :], other=0.0)
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
        tl.store(E + i, 0.5 * STRENGTH * tl.sum(wq * field, 0))
        tl.store(PULL + i.to(tl.int64) * M + m, STRENGTH * w * field, mask=m < M)
        tl.store(F + i * 3, STRENGTH * tl.sum(fx, 0))
        tl.store(F + i * 3 + 1, STRENGTH * tl.sum(fy, 0))
        tl.store(F + i * 3 + 2, STRENGTH * tl.sum(fz, 0))
        if STRESS:
            half = 0.5 * STRENGTH
            sxy, sxz, syz = half * tl.sum(xy, 0), half * tl.sum(xz, 0), half * tl.sum(yz, 0)
            tl.store(VIRIAL + i * 9, half * tl.sum(xx, 0))
            tl.store(VIRIAL + i * 9 + 1, sxy)
            tl.store(VIRIAL + i * 9 + 2, sxz)
            tl.store(VIRIAL + i * 9 + 3, sxy)
            tl.store(VIRIAL + i * 9 + 4, half * tl.sum(yy, 0))
            tl.store(VIRIAL + i * 9 + 5, syz)
            tl.store(VIRIAL + i * 9 + 6, sxz)
            tl.store(VIRIAL + i * 9 + 7, syz)
            tl.store(VIRIAL + i * 9 + 8, half * tl.sum(zz, 0))


@dataclass(frozen=True, eq=False)
class Found:
    """Energies [N], forces [N,3], derivatives in charges [N,M] and in a strain [N,3,3], None unless asked for."""

    energies: Tensor
    forces: Tensor
    pull: Tensor
    virial: Tensor | None


def evaluate(prior: Coulomb, batch: Batch, edges: Edges, charges: Tensor, *, stress: bool) -> Found:
    """Energies and derivatives of a prior, from charges [N,M] float32 and edges that cover its cutoff."""
    config, (atoms, channels) = prior.config, charges.shape
    open_ = open_systems(batch).int()
    energies, forces = charges.new_empty(atoms), charges.new_empty(atoms, 3)
    pull, virial = torch.empty_like(charges), charges.new_empty(atoms, 3, 3) if stress else None
    lower, upper = (0.0, float(config.damping)) if config.switch is None else config.switch
    shape = dict(STRENGTH=config.strength, LOWER=lower, UPPER=upper, SWITCH=config.switch is not None, M=channels)
    wide = max(FEWEST, triton.next_power_of_2(channels))
    weights = prior.weights.to(charges.dtype)
    out = (energies, forces, pull, energies if virial is None else virial)
    if prior.sees_all_pairs:
        ends = torch.arange(batch.num_systems + 1, dtype=batch.system_index.dtype, device=charges.device)
        every_pair[(triton.cdiv(atoms, FEWEST),)](
            batch.positions, charges, weights, batch.system_index,
            torch.searchsorted(batch.system_index, ends, out_int32=True), open_, *out, atoms, **shape, ROWS=FEWEST,
            COLUMNS=COLUMNS, CHANNELS=wide, STRESS=stress, num_warps=4,
        )  # fmt: skip
    square, level = prior.field
    within_cutoff[(atoms,)](
        batch.positions, batch.cell, charges, weights, batch.system_index, open_, edges.row_ptr, edges.source,
        edges.shifts, *out, **shape, CUTOFF=float(config.cutoff), SQUARE=square, LEVEL=level,
        EVERY=not prior.sees_all_pairs, DEPTH=DEPTH, CHANNELS=wide, STRESS=stress, num_warps=1,
    )  # fmt: skip
    return Found(energies, forces, pull, virial)
