"""Replica exchange on a GPU: the decisions of `TemperatureExchange`, equal to the bit.

The arithmetic is that of NumPy on the host, operation by operation, so that launches must not fuse multiplications and
additions (enable_fp_fusion=False). An attempt is made once for each step that is a multiple of the interval: LAST is
the step of the newest one. Nothing happens while the run has halted.
"""

import triton
import triton.language as tl

from torchmdx.dynamics import random_numbers
from torchmdx.structures.units import BOLTZMANN as BOLTZMANN_CONSTANT

EXCHANGE = tl.constexpr(random_numbers.EXCHANGE)
TERMS = tl.constexpr(random_numbers.LOG_TERMS)
BOLTZMANN = tl.constexpr(BOLTZMANN_CONSTANT)
LOG_2 = tl.constexpr(random_numbers.LOG_2)
SQRT_2 = tl.constexpr(random_numbers.SQRT_2)
MANTISSA = tl.constexpr(int(random_numbers.MANTISSA))
ONE = tl.constexpr(int(random_numbers.ONE))


@triton.jit
def log_uniform(words):
    """As `random_numbers.log_uniform`."""
    number = words.to(tl.float64) + 0.5
    bits = number.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1023
    fraction = ((bits & MANTISSA) | ONE).to(tl.float64, bitcast=True)
    large = fraction > SQRT_2
    fraction = tl.where(large, 0.5 * fraction, fraction)
    exponent = tl.where(large, exponent + 1, exponent)
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    series = 0.0 * ratio
    for k in tl.static_range(TERMS):
        # A float32 constant would be inexact: the reciprocal is made in float64.
        series = series * square + (0.0 * ratio + 1.0) / (0.0 * ratio + (2 * (TERMS - 1 - k) + 1))
    return (exponent - 32).to(tl.float64) * (0.0 * ratio + LOG_2) + (2.0 * ratio) * series


@triton.jit
def rank(TEMPERATURES, ORDER, SCALE, num_systems, BLOCK: tl.constexpr):
    """ORDER: the replicas from the lowest temperature, equal ones by their number. SCALE: 1."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < num_systems
    own = tl.load(TEMPERATURES + i, mask=mask, other=0.0)
    place = 0 * i
    for j in range(num_systems):
        other = tl.load(TEMPERATURES + j)
        before = (other < own) | ((other == own) & (j < i))
        place += before.to(tl.int32)
    tl.store(ORDER + place, i, mask=mask)
    tl.store(SCALE + i, 0.0 * own + 1.0, mask=mask)


@triton.jit
def decide(
    TEMPERATURES, THERMAL, ENERGY, ADDED, ORDER, SCALE, ATTEMPTS, ACCEPTED, LAST, CONTROL, SEED, CONSTANTS,
    num_systems, every, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attempts between neighbours on the ladder: swaps temperatures, and sets the factors SCALE of velocities.

    CONSTANTS: the Boltzmann constant in float64. A single program. Each lane reads and writes its own two replicas.
    """
    step = tl.load(CONTROL)
    due = (tl.load(CONTROL + 1) == 0) & (step % every == 0) & (step != tl.load(LAST))
    if due:
        lane = tl.arange(0, BLOCK)
        first = ((step // every) % 2).to(tl.int32) + 2 * lane
        mask = first + 1 < num_systems
        cold = tl.load(ORDER + first, mask=mask, other=0)
        hot = tl.load(ORDER + first + 1, mask=mask, other=0)
        low, high = (
            tl.load(TEMPERATURES + cold, mask=mask, other=1.0),
            tl.load(TEMPERATURES + hot, mask=mask, other=1.0),
        )
        thermal_low, thermal_high = tl.load(THERMAL + cold, mask=mask), tl.load(THERMAL + hot, mask=mask)
        energy_cold = tl.load(ENERGY + cold, mask=mask, other=0.0) + tl.load(ADDED + cold, mask=mask, other=0.0)
        energy_hot = tl.load(ENERGY + hot, mask=mask, other=0.0) + tl.load(ADDED + hot, mask=mask, other=0.0)
        boltzmann = tl.load(CONSTANTS)
        one = 0.0 * low + 1.0
        exponent = (one / (boltzmann * low) - one / (boltzmann * high)) * (energy_cold - energy_hot)
        counter = first.to(tl.uint32)
        zero = counter & 0
        step_low, step_high = (step & 0xFFFFFFFF).to(tl.uint32), (step >> 32).to(tl.uint32)
        word, _, _, _ = tl.philox(tl.load(SEED), counter, zero + step_low, zero + step_high, zero + EXCHANGE)
        swapped = mask & (log_uniform(word) < exponent)
        tl.store(TEMPERATURES + cold, high, mask=swapped)
        tl.store(TEMPERATURES + hot, low, mask=swapped)
        tl.store(THERMAL + cold, thermal_high, mask=swapped)
        tl.store(THERMAL + hot, thermal_low, mask=swapped)
        tl.store(SCALE + cold, tl.sqrt(high / low), mask=swapped)
        tl.store(SCALE + hot, tl.sqrt(low / high), mask=swapped)
        tl.store(ATTEMPTS + first, tl.load(ATTEMPTS + first, mask=mask, other=0) + 1, mask=mask)
        tl.store(ACCEPTED + first, tl.load(ACCEPTED + first, mask=mask, other=0) + swapped.to(tl.int64), mask=mask)
        tl.store(LAST, step)


@triton.jit
def scale(VELOCITIES, SYSTEM, SCALE, num_atoms, BLOCK: tl.constexpr):
    """Velocities of the new temperatures."""
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = i < num_atoms
    factor = tl.load(SCALE + tl.load(SYSTEM + i, mask=mask, other=0), mask=mask, other=1.0)
    for k in tl.static_range(3):
        tl.store(VELOCITIES + 3 * i + k, factor * tl.load(VELOCITIES + 3 * i + k, mask=mask, other=0.0), mask=mask)
