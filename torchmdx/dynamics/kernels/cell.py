"""Stochastic cell rescaling on a GPU: the scale of each structure and its next cell, before `motion.advance`.

CONSTANTS is (mobility, pressure, unit of accelerations, kick), as in `barostat.CellRescaling` and
`Motion.thermal_kick`. A ratio of volumes that is out of range gives an infinite scale, so that the evaluation is not
finite and the run halts.
"""

import triton
import triton.language as tl

from torchmdx.dynamics import barostat, random_numbers
from torchmdx.dynamics.kernels.motion import normals

BAROSTAT = tl.constexpr(random_numbers.BAROSTAT)
LOWEST = tl.constexpr(barostat.MOST_CHANGE**-0.5)
HIGHEST = tl.constexpr(barostat.MOST_CHANGE**0.5)


@triton.jit
def determinant(CELL, system):
    """Of the cell [3,3] of a structure."""
    c = CELL + 9 * system
    a0, a1, a2 = tl.load(c), tl.load(c + 1), tl.load(c + 2)
    b0, b1, b2 = tl.load(c + 3), tl.load(c + 4), tl.load(c + 5)
    c0, c1, c2 = tl.load(c + 6), tl.load(c + 7), tl.load(c + 8)
    return a0 * (b1 * c2 - b2 * c1) + a1 * (b2 * c0 - b0 * c2) + a2 * (b0 * c1 - b1 * c0)


@triton.jit
def rescale_cell(
    VELOCITIES, FORCES, MASSES, INVERSE_MASSES, HELD, STARTS, SEEDS, THERMAL, CELL, VIRIAL, CONSTANTS, MOVED_CELL,
    RATIO, SCALE, CONTROL, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ratio of √V, scale of lengths and trial cell of the next step: one program for each structure.

    HELD as of `bussi.rescale`; the kinetic part of the pressure is that of `Particles.kinetic_virial`.
    """
    if tl.load(CONTROL + 1) == 0:
        system = tl.program_id(0)
        start, end = tl.load(STARTS + system), tl.load(STARTS + system + 1)
        half_kick = tl.load(CONSTANTS + 3)
        twice, p0, p1, p2 = (
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
        )
        for low in range(start, end, BLOCK):
            i = (low + tl.arange(0, BLOCK)).to(tl.int64)
            mask = i < end
            kick = half_kick * tl.load(INVERSE_MASSES + i, mask=mask, other=0.0)
            v0 = tl.load(VELOCITIES + 3 * i, mask=mask, other=0.0) + kick * tl.load(FORCES + 3 * i, mask, 0.0)
            v1 = tl.load(VELOCITIES + 3 * i + 1, mask=mask, other=0.0) + kick * tl.load(FORCES + 3 * i + 1, mask, 0.0)
            v2 = tl.load(VELOCITIES + 3 * i + 2, mask=mask, other=0.0) + kick * tl.load(FORCES + 3 * i + 2, mask, 0.0)
            mass = tl.load(MASSES + i, mask=mask, other=0.0)
            twice += mass * (v0 * v0 + v1 * v1 + v2 * v2)
            p0, p1, p2 = p0 + mass * v0, p1 + mass * v1, p2 + mass * v2
        mobility, pressure, unit = tl.load(CONSTANTS), tl.load(CONSTANTS + 1), tl.load(CONSTANTS + 2)
        volume, thermal = tl.abs(determinant(CELL, system)), tl.load(THERMAL + system) / unit
        held = tl.load(HELD + system)
        q0, q1, q2 = tl.sum(p0, 0), tl.sum(p1, 0), tl.sum(p2, 0)
        kinetic = (tl.sum(twice, 0) - held * (q0 * q0 + q1 * q1 + q2 * q2)) / unit
        kinetic += tl.where(held > 0, 3.0 * thermal, 0.0)
        inner = (kinetic + tl.load(VIRIAL + system)) / (3.0 * volume)
        missing = pressure - inner - thermal / (2.0 * volume)
        k = tl.arange(0, BLOCK).to(tl.int64)
        noise, _, _ = normals(tl.load(SEEDS + system) + 0 * k, 0 * k, tl.load(CONTROL) + 1, BAROSTAT)
        chosen = tl.sum(tl.where(k == 0, noise, 0.0), 0)
        ratio = 1.0 - mobility * missing + tl.sqrt(thermal * mobility / volume) * chosen
        steady = (ratio > LOWEST) & (ratio < HIGHEST)
        scale = tl.exp(tl.log(tl.where(steady, ratio, 1.0)) * (2.0 / 3.0))
        tl.store(RATIO + system, ratio)
        tl.store(SCALE + system, tl.where(steady, scale, float("inf")))
        entry = tl.arange(0, 16)
        cell = tl.load(CELL + 9 * system + entry, mask=entry < 9, other=0.0)
        tl.store(MOVED_CELL + 9 * system + entry, scale * cell, mask=entry < 9)


@triton.jit
def commit_cell(CELL, VIRIAL, MOVED_CELL, STRESS, ADDED_VIRIAL, CONTROL, num_systems, BLOCK: tl.constexpr):
    """Commits cells, and virials -V tr(stress) with those of restraints, unless `motion.complete` has halted."""
    if tl.load(CONTROL + 1) == 0:
        # Places beyond the last structure repeat it.
        s = tl.minimum(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), num_systems - 1).to(tl.int64)
        volume = tl.abs(determinant(MOVED_CELL, s))
        trace = tl.load(STRESS + 9 * s) + tl.load(STRESS + 9 * s + 4) + tl.load(STRESS + 9 * s + 8)
        tl.store(VIRIAL + s, tl.load(ADDED_VIRIAL + s) - volume * trace)
        for entry in tl.static_range(9):
            tl.store(CELL + 9 * s + entry, tl.load(MOVED_CELL + 9 * s + entry))
