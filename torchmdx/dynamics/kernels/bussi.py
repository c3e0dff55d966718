"""Stochastic velocity rescaling on a GPU. CONSTANTS and CONTROL as in `kernels.motion`."""

import triton
import triton.language as tl

from torchmdx.dynamics.kernels.motion import normals


@triton.jit
def rescale(
    VELOCITIES, MASSES, COUNTED, HELD, STARTS, FIRST, SEEDS, THERMAL, CONSTANTS, CONTROL, BLOCK: tl.constexpr
):  # fmt: skip
    """Velocity rescaling after `complete`: one program for each structure. MASSES are 0 for frozen atoms.

    HELD [S]: the inverse mass of structures whose drift is not thermal and is kept; 0 for others.
    """
    if tl.load(CONTROL + 1) == 0:
        system = tl.program_id(0)
        start, end = tl.load(STARTS + system), tl.load(STARTS + system + 1)
        first, seed, step = tl.load(FIRST + system), tl.load(SEEDS + system), tl.load(CONTROL)
        twice, others, single = (
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
        )
        p0, p1, p2 = (
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
        )
        for low in range(start, end, BLOCK):
            i = (low + tl.arange(0, BLOCK)).to(tl.int64)
            mask = i < end
            v0 = tl.load(VELOCITIES + 3 * i, mask=mask, other=0.0)
            v1 = tl.load(VELOCITIES + 3 * i + 1, mask=mask, other=0.0)
            v2 = tl.load(VELOCITIES + 3 * i + 2, mask=mask, other=0.0)
            mass = tl.load(MASSES + i, mask=mask, other=0.0)
            twice += mass * (v0 * v0 + v1 * v1 + v2 * v2)
            p0, p1, p2 = p0 + mass * v0, p1 + mass * v1, p2 + mass * v2
            z0, z1, z2 = normals(seed + 0 * i, i - start, step)
            others += tl.load(COUNTED + i, mask=mask, other=0.0) * (z0 * z0 + z1 * z1 + z2 * z2)
            single += tl.where(i == first, z0, 0.0)
        held = tl.load(HELD + system)
        d0, d1, d2 = held * tl.sum(p0, 0), held * tl.sum(p1, 0), held * tl.sum(p2, 0)
        drifting = d0 * tl.sum(p0, 0) + d1 * tl.sum(p1, 0) + d2 * tl.sum(p2, 0)
        doubled, chosen = tl.sum(twice, 0) - drifting, tl.sum(single, 0)
        kept = tl.load(CONSTANTS + 2)
        ratio = (1 - kept) * tl.load(THERMAL + system) / tl.where(doubled > 0, doubled, 1.0)
        square = kept + ratio * tl.sum(others, 0) + 2 * chosen * tl.sqrt(kept * ratio)
        alpha = tl.sqrt(tl.maximum(square, 0.0))
        alpha = tl.where(chosen * tl.sqrt(ratio) + tl.sqrt(kept) >= 0, alpha, -alpha)
        alpha = tl.where(doubled > 0, alpha, 1.0)
        for low in range(start, end, BLOCK):
            i = (low + tl.arange(0, BLOCK)).to(tl.int64)
            mask = i < end
            for k in tl.static_range(3):
                v = tl.load(VELOCITIES + 3 * i + k, mask=mask, other=0.0)
                drift = d0 if k == 0 else d1 if k == 1 else d2
                tl.store(VELOCITIES + 3 * i + k, drift + alpha * (v - drift), mask=mask)
