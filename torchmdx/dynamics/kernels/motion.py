"""One step on a GPU: what all integrators share, before the evaluation and after it, and velocity Verlet.

STATE holds what a run has committed, TRIAL what becomes of it if the evaluation is good. CONTROL is (step, halted).
Once an evaluation is bad, halted is set and nothing changes any more, until the host has repaired the cause.
CONSTANTS is (h, h/2 with the unit of accelerations, c, sqrt(1 - c²)), on the device since Triton rounds floating-point
arguments to float32. With multiple time steps (INNER > 0) the last kick is of INNER half steps with the difference to
the forces QUICK of the fast potential.
"""

import triton
import triton.language as tl

from torchmdx.dynamics import random_numbers
from torchmdx.step import buffer_storage

THERMOSTAT = tl.constexpr(random_numbers.THERMOSTAT)
OVERFLOW = tl.constexpr(buffer_storage.OVERFLOW)
NOT_FINITE = tl.constexpr(buffer_storage.NOT_FINITE)
FAR = tl.constexpr(buffer_storage.FAR)
UNCERTAIN = tl.constexpr(buffer_storage.UNCERTAIN)


@triton.jit
def normals(seed, atom, step, purpose: tl.constexpr = THERMOSTAT):
    """Three standard normal numbers; the same as `random_numbers.normals`, within rounding."""
    low, high = (step & 0xFFFFFFFF).to(tl.uint32), (step >> 32).to(tl.uint32)
    counter = atom.to(tl.uint32)
    zero = counter & 0
    w0, w1, w2, w3 = tl.philox(seed, counter, zero + low, zero + high, zero + purpose)
    u0 = (w0.to(tl.float64) + 0.5) / 4294967296.0
    u1 = (w1.to(tl.float64) + 0.5) / 4294967296.0
    u2 = (w2.to(tl.float64) + 0.5) / 4294967296.0
    u3 = (w3.to(tl.float64) + 0.5) / 4294967296.0
    radius, other = tl.sqrt(-2.0 * tl.log(u0)), tl.sqrt(-2.0 * tl.log(u2))
    first, second = 6.283185307179586 * u1, 6.283185307179586 * u3
    return radius * tl.cos(first), radius * tl.sin(first), other * tl.cos(second)


@triton.jit
def kicked(VELOCITIES, FORCES, i, kick, mask):
    """Velocities of atoms i after half a kick, by component."""
    v0 = tl.load(VELOCITIES + 3 * i, mask=mask, other=0.0) + kick * tl.load(FORCES + 3 * i, mask=mask, other=0.0)
    v1 = tl.load(VELOCITIES + 3 * i + 1, mask=mask, other=0.0)
    v1 += kick * tl.load(FORCES + 3 * i + 1, mask=mask, other=0.0)
    v2 = tl.load(VELOCITIES + 3 * i + 2, mask=mask, other=0.0)
    v2 += kick * tl.load(FORCES + 3 * i + 2, mask=mask, other=0.0)
    return v0, v1, v2


@triton.jit
def store_trial(
    POSITIONS, MOVED, FASTER, SYSTEM, SCALE, i, half, v0, v1, v2, w0, w1, w2, mask, SCALED: tl.constexpr,
):  # fmt: skip
    """Trial positions after half a timestep with velocities v and half a timestep with w, which are stored too.

    SCALED: with lengths scaled by SCALE [S], and velocities inversely.
    """
    x0 = tl.load(POSITIONS + 3 * i, mask=mask, other=0.0) + half * (v0 + w0)
    x1 = tl.load(POSITIONS + 3 * i + 1, mask=mask, other=0.0) + half * (v1 + w1)
    x2 = tl.load(POSITIONS + 3 * i + 2, mask=mask, other=0.0) + half * (v2 + w2)
    if SCALED:
        factor = tl.load(SCALE + tl.load(SYSTEM + i, mask=mask, other=0), mask=mask, other=1.0)
        x0, x1, x2 = factor * x0, factor * x1, factor * x2
        w0, w1, w2 = w0 / factor, w1 / factor, w2 / factor
    tl.store(MOVED + 3 * i, x0, mask=mask)
    tl.store(MOVED + 3 * i + 1, x1, mask=mask)
    tl.store(MOVED + 3 * i + 2, x2, mask=mask)
    tl.store(FASTER + 3 * i, w0, mask=mask)
    tl.store(FASTER + 3 * i + 1, w1, mask=mask)
    tl.store(FASTER + 3 * i + 2, w2, mask=mask)


@triton.jit
def advance(
    POSITIONS, VELOCITIES, FORCES, MOVED, FASTER, INVERSE_MASSES, SYSTEM, CONSTANTS, SCALE, CONTROL, num_atoms,
    SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Trial positions MOVED and velocities FASTER of velocity Verlet, half a kick before those of the next step."""
    if tl.load(CONTROL + 1) == 0:
        i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        mask = i < num_atoms
        timestep, half_kick = tl.load(CONSTANTS), tl.load(CONSTANTS + 1)
        kick = half_kick * tl.load(INVERSE_MASSES + i, mask=mask, other=0.0)
        v0, v1, v2 = kicked(VELOCITIES, FORCES, i, kick, mask)
        half = 0.5 * timestep
        store_trial(POSITIONS, MOVED, FASTER, SYSTEM, SCALE, i, half, v0, v1, v2, v0, v1, v2, mask, SCALED)


@triton.jit
def complete(
    POSITIONS, VELOCITIES, FORCES, ENERGY, RESTRAINT_ENERGY, MOVED, FASTER, NEW_FORCES, NEW_ENERGY, ADDED_ENERGY,
    FAST_FORCES, QUICK, VERDICT, INVERSE_MASSES, CONSTANTS, FLAGS, CONTROL, num_atoms, num_systems,
    INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Commits a step whose evaluation is good; otherwise halts. VERDICT is not 0 if inner steps were bad."""
    bad = tl.load(FLAGS + OVERFLOW) | tl.load(FLAGS + NOT_FINITE) | tl.load(FLAGS + FAR) | tl.load(FLAGS + UNCERTAIN)
    if INNER > 0:
        bad = bad | tl.load(VERDICT)
    # Programs that read the flag after another has set it here do the same, since the evaluation is bad for all.
    if bad != 0:
        tl.store(CONTROL + 1, 1)
    elif tl.load(CONTROL + 1) == 0:
        block = tl.program_id(0)
        i = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        mask, own = i < num_atoms, i < num_systems
        kick = tl.load(CONSTANTS + 1) * tl.load(INVERSE_MASSES + i, mask=mask, other=0.0)
        if INNER > 0:
            kick *= INNER
        tl.store(ENERGY + i, tl.load(NEW_ENERGY + i, mask=own, other=0.0), mask=own)
        tl.store(RESTRAINT_ENERGY + i, tl.load(ADDED_ENERGY + i, mask=own, other=0.0), mask=own)
        for k in tl.static_range(3):
            force = tl.load(NEW_FORCES + 3 * i + k, mask=mask, other=0.0)
            tl.store(POSITIONS + 3 * i + k, tl.load(MOVED + 3 * i + k, mask=mask, other=0.0), mask=mask)
            velocity = tl.load(FASTER + 3 * i + k, mask=mask, other=0.0)
            if INNER > 0:
                quick = tl.load(QUICK + 3 * i + k, mask=mask, other=0.0)
                velocity += kick * (force - quick)
                tl.store(FAST_FORCES + 3 * i + k, quick, mask=mask)
            else:
                velocity += kick * force
            tl.store(VELOCITIES + 3 * i + k, velocity, mask=mask)
            tl.store(FORCES + 3 * i + k, force, mask=mask)
        if block == 0:
            tl.store(CONTROL, tl.load(CONTROL) + (INNER if INNER > 0 else 1))


@triton.jit
def commit_spread(
    ENERGY_SPREAD, LARGEST, NEW_ENERGY_SPREAD, FORCE_SPREAD, STARTS, CONTROL, BLOCK: tl.constexpr
):  # fmt: skip
    """Commits spreads or uncertainties unless `complete` has halted: of the energy, and the largest one of an atom.

    One program for each structure.
    """
    if tl.load(CONTROL + 1) == 0:
        system = tl.program_id(0)
        start, end = tl.load(STARTS + system), tl.load(STARTS + system + 1)
        most = tl.zeros((BLOCK,), tl.float64)
        for low in range(start, end, BLOCK):
            i = (low + tl.arange(0, BLOCK)).to(tl.int64)
            most = tl.maximum(most, tl.load(FORCE_SPREAD + i, mask=i < end, other=0.0))
        tl.store(ENERGY_SPREAD + system, tl.load(NEW_ENERGY_SPREAD + system))
        tl.store(LARGEST + system, tl.max(most, 0))
