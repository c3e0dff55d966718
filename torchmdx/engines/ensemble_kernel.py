"""Mean and spread over the members of an ensemble, in one kernel (Triton)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torchmdx.engines.ensemble import EnsembleEngine

BLOCK = 128


def launch_combine(engine: EnsembleEngine) -> None:
    """The outputs of an ensemble's engine from its stacks, by the formulas of models/ensemble.py."""
    out, stress = engine.outputs, engine.stresses
    num_systems, num_atoms = len(out.energy), len(out.energies)
    work = max(num_atoms, 9 * num_systems)
    combine[(triton.cdiv(work, BLOCK),)](
        engine.energy.block, engine.energies.block, engine.forces.block,
        engine.energy.block if stress is None else stress.block,
        out.energy, out.energies, out.forces, out.energy if out.stress is None else out.stress,
        out.energy_spread, out.force_spread, num_atoms, num_systems,
        engine.energy.stride, engine.energies.stride, engine.forces.stride, 0 if stress is None else stress.stride,
        MEMBERS=len(engine.engines), STRESS=stress is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _mean(values, stride, i, here, MEMBERS: tl.constexpr):
    """(mean, the first member's value, mean of the differences from it)."""
    first = tl.load(values + i, mask=here, other=0.0).to(tl.float64)
    total = first - first
    for m in tl.static_range(1, MEMBERS):
        total += tl.load(values + m * stride + i, mask=here, other=0.0).to(tl.float64) - first
    shift = total / MEMBERS
    return first + shift, first, shift


@triton.jit
def _squares(values, stride, i, here, first, shift, MEMBERS: tl.constexpr):
    """Sum of squared deviations from the mean."""
    found = shift * shift
    for m in tl.static_range(1, MEMBERS):
        away = tl.load(values + m * stride + i, mask=here, other=0.0).to(tl.float64) - first - shift
        found += away * away
    return found


@triton.jit
def combine(
    energy, energies, forces, stress, energy_out, energies_out, forces_out, stress_out, energy_spread, force_spread,
    num_atoms, num_systems, energy_stride, energies_stride, forces_stride, stress_stride,
    MEMBERS: tl.constexpr, STRESS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    system = i < num_systems
    mean, first, shift = _mean(energy, energy_stride, i, system, MEMBERS)
    squares = _squares(energy, energy_stride, i, system, first, shift, MEMBERS)
    tl.store(energy_out + i, mean, mask=system)
    tl.store(energy_spread + i, tl.sqrt(squares / (MEMBERS - 1)), mask=system)
    if STRESS:
        entry = i < 9 * num_systems
        mean, first, shift = _mean(stress, stress_stride, i, entry, MEMBERS)
        tl.store(stress_out + i, mean, mask=entry)
    here = i < num_atoms
    mean, first, shift = _mean(energies, energies_stride, i, here, MEMBERS)
    tl.store(energies_out + i, mean, mask=here)
    squares = first - first
    for k in tl.static_range(3):
        mean, first, shift = _mean(forces, forces_stride, 3 * i + k, here, MEMBERS)
        squares += _squares(forces, forces_stride, 3 * i + k, here, first, shift, MEMBERS)
        tl.store(forces_out + 3 * i + k, mean, mask=here)
    tl.store(force_spread + i, tl.sqrt(squares / (MEMBERS - 1)), mask=here)
