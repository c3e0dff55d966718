"""The first and the last kernel of a captured step: coordinates in, results out (Triton)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from torchmdx.neighbors.edges import Edges
from torchmdx.step import buffer_storage
from torchmdx.step.buffer_storage import BufferStorage

BLOCK = 128
# Indices of the flags; kernels accept constants of this kind only.
NEEDED = tl.constexpr(buffer_storage.NEEDED)
OVERFLOW = tl.constexpr(buffer_storage.OVERFLOW)
NOT_FINITE = tl.constexpr(buffer_storage.NOT_FINITE)
FIRST_BAD = tl.constexpr(buffer_storage.FIRST_BAD)
FAR = tl.constexpr(buffer_storage.FAR)
UNCERTAIN = tl.constexpr(buffer_storage.UNCERTAIN)
NUM_FLAGS = tl.constexpr(buffer_storage.NUM_FLAGS)


def launch_prepare(buffers: BufferStorage, system_index: Tensor, *, from_host: bool = False) -> None:
    """places = inputs[order] - images @ cell - origin; box = cell; rounds both to positions and cell; resets the flags.

    Args:
        from_host: The kernel reads the inputs from the host's block.
    """
    work = max(buffers.num_atoms, 9 * buffers.num_systems)
    given = buffers.host_inputs if from_host else buffers.inputs
    _prepare[(triton.cdiv(work, BLOCK),)](
        given["positions"],
        given["cell"],
        buffers.inputs["positions"],
        buffers.inputs["cell"],
        buffers.order,
        buffers.images,
        buffers.origin,
        system_index,
        buffers.places,
        buffers.box,
        buffers.positions,
        buffers.cell,
        buffers.outputs["flags"],
        buffers.num_atoms,
        9 * buffers.num_systems,
        ROUNDED=buffers.places is not buffers.positions,
        FROM_HOST=from_host,
        BLOCK=BLOCK,
        num_warps=4,
    )


def launch_finish(
    buffers: BufferStorage,
    edges: Edges,
    energy: Tensor,
    energies: Tensor,
    forces: Tensor,
    stress: Tensor | None,
    doubts: tuple[Tensor, Tensor] | None = None,
    *,
    to_host: int = 0,
) -> None:
    """Writes results in the caller's order and in float64, and the flags. doubts: of systems [S], atoms [N], float64.

    Args:
        to_host: This many numbers of the output are written to the host's block by the kernel, in a single program.
    """
    out: dict[str, Any] = buffers.outputs
    unused = energy, energies  # of the same dtypes; the kernel does not use them
    work = max(buffers.num_atoms, 9 * buffers.num_systems)
    block = triton.next_power_of_2(work) if to_host else BLOCK
    _finish[(triton.cdiv(work, block),)](
        energy,
        energies,
        forces,
        energy if stress is None else stress,
        *(doubts or unused),
        buffers.positions,
        buffers.order,
        buffers.far,
        buffers.most,
        edges.needed,
        edges.overflow,
        out["energy"],
        out["energies"] if buffers.energies_wanted else energies,
        out["forces"],
        energy if stress is None else out["stress"],
        *([out[name] for name in buffers.doubts or ()] if doubts else unused),
        out["flags"],
        buffers.output,
        buffers.host_output,
        buffers.num_atoms,
        buffers.num_systems,
        to_host,
        ENERGIES=buffers.energies_wanted,
        STRESS=stress is not None,
        SPREAD=doubts is not None,
        TO_HOST=triton.next_power_of_2(to_host) if to_host else 0,
        BLOCK=block,
        num_warps=4,
    )


@triton.jit
def _prepare(
    given, given_cell, kept, kept_cell, order, images, origin, system_index, places, box, positions, cell, flags,
    num_atoms, num_cell, ROUNDED: tl.constexpr, FROM_HOST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if block == 0:
        place = tl.arange(0, NUM_FLAGS)
        start = tl.where(place == FIRST_BAD, num_atoms, 0)
        tl.store(flags + place, start.to(tl.int64))
    i = block * BLOCK + tl.arange(0, BLOCK)
    entry = i < num_cell
    here = i < num_atoms
    at = i.to(tl.int64)
    atom = tl.load(order + at, mask=here, other=0).to(tl.int64)
    system = tl.load(system_index + at, mask=here, other=0).to(tl.int64)
    # All loads precede the first store: reading host memory takes microseconds, and a store waits for its value.
    value = tl.load(given_cell + i, mask=entry, other=0.0)
    x0, x1, x2 = _three(given + 3 * atom, here)
    a0, a1, a2 = _three(given_cell + 9 * system, here)
    b0, b1, b2 = _three(given_cell + 9 * system + 3, here)
    c0, c1, c2 = _three(given_cell + 9 * system + 6, here)
    n0, n1, n2 = _three(images + 3 * at, here)
    n0, n1, n2 = n0.to(tl.float64), n1.to(tl.float64), n2.to(tl.float64)
    o0, o1, o2 = _three(origin + 3 * system, here)
    tl.store(box + i, value, mask=entry)
    if FROM_HOST:
        tl.store(kept_cell + i, value, mask=entry)
        _store_three(kept + 3 * atom, x0, x1, x2, here)
    if ROUNDED:
        tl.store(cell + i, value.to(cell.dtype.element_ty), mask=entry)
    x0 = x0 - n0 * a0 - n1 * b0 - n2 * c0 - o0
    x1 = x1 - n0 * a1 - n1 * b1 - n2 * c1 - o1
    x2 = x2 - n0 * a2 - n1 * b2 - n2 * c2 - o2
    _store_three(places + 3 * at, x0, x1, x2, here)
    if ROUNDED:
        kind = positions.dtype.element_ty
        _store_three(positions + 3 * at, x0.to(kind), x1.to(kind), x2.to(kind), here)


@triton.jit
def _three(pointer, mask):
    """Three consecutive numbers, 0 where masked."""
    x = tl.load(pointer, mask=mask, other=0)
    return x, tl.load(pointer + 1, mask=mask, other=0), tl.load(pointer + 2, mask=mask, other=0)


@triton.jit
def _store_three(pointer, x, y, z, mask):
    tl.store(pointer, x, mask=mask)
    tl.store(pointer + 1, y, mask=mask)
    tl.store(pointer + 2, z, mask=mask)


@triton.jit
def _finish(
    energy, energies, forces, stress, energy_spread, force_spread, positions, order, far, most_spread, needed, overflow,
    energy_out, energies_out, forces_out, stress_out, energy_spread_out, force_spread_out, flags, output,
    host, num_atoms, num_systems, to_host, ENERGIES: tl.constexpr, STRESS: tl.constexpr, SPREAD: tl.constexpr,
    TO_HOST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    if block == 0:
        tl.store(flags + NEEDED, tl.load(needed).to(tl.int64))
        tl.store(flags + OVERFLOW, tl.load(overflow).to(tl.int64))
    tl.store(energy_out + i, tl.load(energy + i, mask=i < num_systems, other=0.0), mask=i < num_systems)
    if STRESS:
        entry = i < 9 * num_systems
        tl.store(stress_out + i, tl.load(stress + i, mask=entry, other=0.0).to(tl.float64), mask=entry)
    if SPREAD:
        apart = tl.load(energy_spread + i, mask=i < num_systems, other=0.0)
        tl.store(energy_spread_out + i, apart, mask=i < num_systems)
    here = i < num_atoms
    i = i.to(tl.int64)
    atom = tl.load(order + i, mask=here, other=0).to(tl.int64)
    if SPREAD:
        apart = tl.load(force_spread + i, mask=here, other=0.0)
        tl.store(force_spread_out + atom, apart, mask=here)
        uncertain = tl.sum((here & (apart > tl.load(most_spread))).to(tl.int64), 0)
        if TO_HOST > 0:  # a single program can read back its own stores, but not reliably its atomic additions
            tl.store(flags + UNCERTAIN, uncertain)
        elif uncertain > 0:
            tl.atomic_add(flags + UNCERTAIN, uncertain)
    limit = tl.load(far)
    e = tl.load(energies + i, mask=here, other=0.0)
    if ENERGIES:
        tl.store(energies_out + atom, e, mask=here)
    # x - x is 0 for finite x, else NaN. Positions are checked too: an atom at NaN has no neighbours and finite forces.
    rest = e - e
    away = here & False
    for k in tl.static_range(3):
        f = tl.load(forces + 3 * i + k, mask=here, other=0.0).to(tl.float64)
        p = tl.load(positions + 3 * i + k, mask=here, other=0.0).to(tl.float64)
        tl.store(forces_out + 3 * atom + k, f, mask=here)
        rest += (f - f) + (p - p)
        away = away | (tl.abs(p) > limit)
    bad = here & (rest != 0.0)
    count = tl.sum(bad.to(tl.int64), 0)
    first_bad = tl.min(tl.where(bad, atom, num_atoms), 0)
    far_away = tl.max(away.to(tl.int64), 0)
    if TO_HOST > 0:
        tl.store(flags + NOT_FINITE, count)
        tl.store(flags + FIRST_BAD, first_bad.to(tl.int64))
        tl.store(flags + FAR, far_away)
        tl.debug_barrier()
        k = tl.arange(0, TO_HOST)
        tl.store(host + k, tl.load(output + k, mask=k < to_host), mask=k < to_host)
    else:
        if count > 0:
            tl.atomic_add(flags + NOT_FINITE, count)
            tl.atomic_min(flags + FIRST_BAD, first_bad)
        if far_away > 0:
            tl.atomic_max(flags + FAR, far_away)
