"""Multiple time steps on a GPU: the kicks of the difference of two potentials, and whether they agree.

CONSTANTS and CONTROL as in `kernels.motion`. QUICK_* are those of the inner steps, whose control begins with that of
the outer ones, so that a run that has halted does not change. VERDICT is (bad): the inner steps have halted, or forces
differ by more than LIMITS [N].
"""

import triton
import triton.language as tl

from torchmdx.dynamics.kernels.motion import kicked


@triton.jit
def require_agreement(FORCES, QUICK, LIMITS, VERDICT, i, mask):
    """Sets VERDICT to 2 unless the forces on atoms i agree."""
    square = tl.load(LIMITS + i, mask=mask, other=0.0)
    square = -square * square
    for k in tl.static_range(3):
        force = tl.load(FORCES + 3 * i + k, mask=mask, other=0.0)
        difference = force - tl.load(QUICK + 3 * i + k, mask=mask, other=0.0)
        square += difference * difference
    if tl.sum(((square > 0) & mask).to(tl.int32), 0) > 0:
        tl.store(VERDICT, 2)


@triton.jit
def begin(
    POSITIONS, VELOCITIES, FORCES, FAST_FORCES, QUICK_POSITIONS, QUICK_VELOCITIES, QUICK_FORCES, QUICK_CONTROL,
    INVERSE_MASSES, LIMITS, VERDICT, CONSTANTS, CONTROL, num_atoms, INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state of the inner steps: that of the run, with velocities kicked by the difference of the forces."""
    block, halted = tl.program_id(0), tl.load(CONTROL + 1)
    if block == 0:
        tl.store(QUICK_CONTROL, tl.load(CONTROL))
        tl.store(QUICK_CONTROL + 1, halted)
    if halted == 0:
        i = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        mask = i < num_atoms
        require_agreement(FORCES, FAST_FORCES, LIMITS, VERDICT, i, mask)
        kick = INNER * tl.load(CONSTANTS + 1) * tl.load(INVERSE_MASSES + i, mask=mask, other=0.0)
        v0, v1, v2 = kicked(VELOCITIES, FORCES, i, kick, mask)
        for k in tl.static_range(3):
            quick = tl.load(FAST_FORCES + 3 * i + k, mask=mask, other=0.0)
            velocity = v0 if k == 0 else v1 if k == 1 else v2
            tl.store(QUICK_POSITIONS + 3 * i + k, tl.load(POSITIONS + 3 * i + k, mask=mask, other=0.0), mask=mask)
            tl.store(QUICK_VELOCITIES + 3 * i + k, velocity - kick * quick, mask=mask)
            tl.store(QUICK_FORCES + 3 * i + k, quick, mask=mask)


@triton.jit
def hand_over(QUICK_POSITIONS, QUICK_CONTROL, MOVED, VERDICT, CONTROL, num_atoms, BLOCK: tl.constexpr):
    """After the inner steps: positions for the full potential, or a verdict if one of them was bad."""
    if tl.load(CONTROL + 1) == 0:
        block = tl.program_id(0)
        if (block == 0) & (tl.load(QUICK_CONTROL + 1) != 0):
            tl.store(VERDICT, 1)
        i = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        mask = i < 3 * num_atoms
        tl.store(MOVED + i, tl.load(QUICK_POSITIONS + i, mask=mask, other=0.0), mask=mask)


@triton.jit
def compare(FORCES, QUICK, LIMITS, VERDICT, CONTROL, num_atoms, BLOCK: tl.constexpr):
    """Whether the forces after the inner steps agree, unless there is a verdict already."""
    if (tl.load(CONTROL + 1) == 0) & (tl.load(VERDICT) == 0):
        i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        require_agreement(FORCES, QUICK, LIMITS, VERDICT, i, i < num_atoms)
