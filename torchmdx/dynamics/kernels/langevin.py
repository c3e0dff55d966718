"""Langevin dynamics on a GPU. CONSTANTS and CONTROL as in `kernels.motion`."""

import triton
import triton.language as tl

from torchmdx.dynamics.kernels.motion import kicked, normals, store_trial


@triton.jit
def advance_langevin(
    POSITIONS, VELOCITIES, FORCES, MOVED, FASTER, INVERSE_MASSES, SYSTEM, PLACE, SEEDS, THERMAL, CONSTANTS, SCALE,
    CONTROL, num_atoms, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `motion.advance`, with friction and noise between the two halves of the motion."""
    if tl.load(CONTROL + 1) == 0:
        i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        mask = i < num_atoms
        timestep, half_kick = tl.load(CONSTANTS), tl.load(CONSTANTS + 1)
        inverse = tl.load(INVERSE_MASSES + i, mask=mask, other=0.0)
        v0, v1, v2 = kicked(VELOCITIES, FORCES, i, half_kick * inverse, mask)
        kept, lost = tl.load(CONSTANTS + 2), tl.load(CONSTANTS + 3)
        system = tl.load(SYSTEM + i, mask=mask, other=0)
        scale = lost * tl.sqrt(tl.load(THERMAL + system, mask=mask, other=0.0) * inverse)
        place = tl.load(PLACE + i, mask=mask, other=0)
        seed = tl.load(SEEDS + system, mask=mask, other=0)
        z0, z1, z2 = normals(seed, place, tl.load(CONTROL) + 1)
        w0, w1, w2 = kept * v0 + scale * z0, kept * v1 + scale * z1, kept * v2 + scale * z2
        half = 0.5 * timestep
        store_trial(POSITIONS, MOVED, FASTER, SYSTEM, SCALE, i, half, v0, v1, v2, w0, w1, w2, mask, SCALED)
