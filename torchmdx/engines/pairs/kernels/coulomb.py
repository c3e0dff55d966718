"""Damped Coulomb interaction of all pairs in systems without periodic directions, on a GPU.

A program walks all atoms of the systems of a few atoms. Pairs are not stored, sums have a fixed order, and nothing
synchronises with the host. Float32 or float64, as the tensors are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.coulomb import open_atoms, partner_range, partners, shape_of
from torchmdx.engines.gpu.triton.nine import store3

ROWS = 4  # atoms of a program
MOST_COLUMNS, TILE = 128, 1024  # partners at a time; the same times channels


@triton.jit
def _all_pairs(
    X, Q, W, G, E, DX, DQ, SYSTEM, PTR, OPEN, num_atoms,
    HALF: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, SWITCH: tl.constexpr, M: tl.constexpr,
    BACK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """E [N]: energies of the atoms; with BACK instead DX [N,3], DQ [N,M]: derivatives of Σ G E. Grid: rows of atoms.

    HALF: half of the strength. Settings are constants, so that float64 has all of their digits.
    """
    dtype = X.dtype.element_ty
    i, here, system, seen, x, y, z = open_atoms(X, SYSTEM, OPEN, num_atoms, ROWS)
    m = tl.arange(0, CHANNELS)
    w = tl.load(W + m, mask=m < M, other=0.0)
    at = i.to(tl.int64)[:, None] * M + m[None, :]
    wq = tl.load(Q + at, mask=here[:, None] & (m < M)[None, :], other=0.0) * w[None, :]
    g = tl.zeros((ROWS,), dtype)
    if BACK:
        g += tl.load(G + i, mask=here, other=0.0)
    field = tl.zeros((ROWS, COLUMNS, CHANNELS), dtype)
    fx, fy, fz = tl.zeros((ROWS, COLUMNS), dtype), tl.zeros((ROWS, COLUMNS), dtype), tl.zeros((ROWS, COLUMNS), dtype)
    first, end = partner_range(SYSTEM, PTR, seen, num_atoms, ROWS)
    for start in range(first, end, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        there, pair, xj, yj, zj = partners(X, SYSTEM, i, system, seen, j, end)
        ux = x[:, None] - xj
        uy = y[:, None] - yj
        uz = z[:, None] - zj
        r = tl.sqrt(tl.where(pair, ux * ux + uy * uy + uz * uz, 1.0))
        s, slope = shape_of(r, LOWER, UPPER, SWITCH)
        other = tl.load(Q + j.to(tl.int64)[:, None] * M + m[None, :], mask=there[:, None] & (m < M)[None, :], other=0.0)
        if BACK:
            both = tl.where(pair, g[:, None] + tl.load(G + j, mask=there, other=0.0)[None, :], 0.0)
            force = both * slope / r * tl.sum(wq[:, None, :] * other[None, :, :], 2)
            fx += force * ux
            fy += force * uy
            fz += force * uz
            s *= both
        else:
            s = tl.where(pair, s, 0.0)
        field += s[:, :, None] * other[None, :, :]
    potential = tl.sum(field, 1)
    if BACK:
        tl.store(DQ + at, HALF * w[None, :] * potential, mask=here[:, None] & (m < M)[None, :])
        store3(DX + i * 3, (HALF * tl.sum(fx, 1), HALF * tl.sum(fy, 1), HALF * tl.sum(fz, 1)), here, 1)
    else:
        tl.store(E + i, HALF * tl.sum(wq * potential, 1), mask=here)


class AllPairs:
    """Energies of all pairs and their derivatives, for a batch: `system_index` [N], `open_systems` [S], settings.

    Args:
        switch: The two lengths of the switch, or None for damping below `damping`.
    """

    def __init__(
        self,
        system_index: torch.Tensor,
        open_systems: torch.Tensor,
        strength: float,
        damping: float,
        switch: tuple[float, float] | None,
    ) -> None:
        ends = torch.arange(len(open_systems) + 1, dtype=system_index.dtype, device=system_index.device)
        self.systems = (system_index, torch.searchsorted(system_index, ends, out_int32=True), open_systems.int())
        lower, upper = (0.0, damping) if switch is None else switch
        self.settings = dict(HALF=0.5 * strength, LOWER=lower, UPPER=upper, SWITCH=switch is not None)

    def energies(self, positions, charges, weights) -> torch.Tensor:
        """[N], of positions [N,3], charges [N,M] and their weights [M]."""
        out = charges.new_empty(len(charges))
        self._launch(positions, charges, weights, out, out, out, out, back=False)
        return out

    def gradients(self, positions, charges, weights, cotangent) -> tuple[torch.Tensor, torch.Tensor]:
        """Of Σ cotangent · energies, in positions and in charges."""
        of_positions, of_charges = torch.empty_like(positions), torch.empty_like(charges)
        self._launch(positions, charges, weights, cotangent, cotangent, of_positions, of_charges, back=True)
        return of_positions, of_charges

    def _launch(self, positions, charges, weights, cotangent, energies, of_positions, of_charges, back: bool) -> None:
        atoms, channels = charges.shape
        wide = triton.next_power_of_2(channels)
        _all_pairs[(triton.cdiv(atoms, ROWS),)](
            positions, charges, weights, cotangent, energies, of_positions, of_charges, *self.systems, atoms,
            **self.settings, M=channels, BACK=back, ROWS=ROWS,
            COLUMNS=max(1, min(MOST_COLUMNS, TILE // wide)), CHANNELS=wide, num_warps=4,
        )  # fmt: skip
