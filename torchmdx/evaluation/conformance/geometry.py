"""Checks of how energy and forces depend on the geometry; each returns its error relative to the largest force."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.evaluation.check_structures import Case, difference, largest, with_positions
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.cell import volume
from torchmdx.structures.system import Batch, System

# Step of central differences: displacements in Å, strains without unit.
STEP = 3e-5
DIRECTIONS = 4
# Distances at which a pair interaction is evaluated, in cutoffs: decaying, just before the cutoff, and beyond.
FADING, BEFORE, BEYOND = (0.8, 0.85, 0.9, 0.95), 1 - 1e-4, (1 + 1e-4, 1.2, 1.5)


def turned(case: Case, *, mirror: bool) -> float:
    """Rotates or mirrors structures: energies must not change, and forces must rotate with them."""
    turn = torch.linalg.qr(_random(3, 3))[0]
    turn = turn * torch.linalg.det(turn).sign() * (-1 if mirror else 1)
    errors = []
    for system in (case.molecule, case.crystal):
        before = evaluate(case.potential, system)
        assert before.forces is not None
        after = evaluate(case.potential, with_positions(system, system.positions @ turn.T, system.cell @ turn.T))
        errors.append(torch.tensor(difference(after, replace(before, forces=before.forces @ turn.T), case.scale)))
    return largest(errors)


def permuted(case: Case) -> float:
    """Evaluates the same atoms in another order."""
    system, order = case.molecule, torch.tensor([4, 0, 8, 3, 2, 7, 1, 5, 6], device="cpu")
    before = evaluate(case.potential, system)
    assert before.forces is not None
    other = System.create(system.positions[order], system.atomic_numbers[order])
    expected = replace(before, energies=before.energies[order], forces=before.forces[order])
    return difference(evaluate(case.potential, other), expected, case.scale)


def batched(case: Case) -> float:
    """Evaluates molecule, crystal and a scaled molecule in one batch, and each alone."""
    other = with_positions(case.molecule, 1.03 * case.molecule.positions)
    systems = [case.molecule, case.crystal, other]
    together = evaluate(case.potential, Batch.from_systems(systems))
    alone = [evaluate(case.potential, system) for system in systems]
    energies = torch.cat([result.energies for result in alone])
    forces = torch.cat([result.forces for result in alone if result.forces is not None])
    return difference(together, replace(together, energies=energies, forces=forces), case.scale)


def supercell(case: Case) -> float:
    """Doubles the crystal's cell along one lattice vector: energies and forces of each atom must not change."""
    small, shift = case.crystal, float(case.potential.shift)
    twice = torch.cat([small.positions, small.positions + small.cell[1]])
    lattice = small.cell * small.cell.new_tensor([[1.0], [2.0], [1.0]])
    large = System.create(twice, small.atomic_numbers.repeat(2), lattice, True)
    one, two = evaluate(case.potential, small), evaluate(case.potential, large)
    assert one.forces is not None
    # The shift is an energy per system, divided equally between its atoms.
    energies = (one.energies - shift / small.num_atoms).repeat(2) + shift / large.num_atoms
    return difference(two, replace(two, energies=energies, forces=one.forces.repeat(2, 1)), case.scale)


def lone_atom(case: Case) -> float:
    """Evaluates an atom without neighbours, in a batch with a molecule."""
    atom = System.create([[0.0, 0.0, 0.0]], case.molecule.atomic_numbers[:1])
    result = evaluate(case.potential, Batch.from_systems([case.molecule, atom]))
    assert result.forces is not None
    if not bool(torch.isfinite(result.energies[-1])):
        raise ValueError(f"the energy of a lone atom must be finite, got {float(result.energies[-1])}")
    return float(result.forces[-1].abs().max()) / case.scale


def at_the_cutoff(case: Case) -> float:
    """Moves an atom away from two others: energy and force that remain at the cutoff, relative to shorter distances.

    The neighbour list extends beyond the cutoff, as with a skin: those pairs must not contribute. Priors have cutoffs
    of their own and are left out.
    """
    potential = case.potential.with_priors([])
    cutoff = float(potential.config.cutoff)
    fading = [_at_distance(case, potential, cutoff * part) for part in FADING]
    last, *beyond = (_at_distance(case, potential, cutoff * part) for part in (BEFORE, *BEYOND))
    end = beyond[-1][0]
    size = max(largest([(energy - end).abs() for energy, _ in fading]), 1e-6 * case.scale)
    push = max(largest([force.abs() for _, force in fading]), 1e-6 * case.scale)
    outside = largest(
        [value for energy, force in beyond for value in ((energy - end).abs() / size, force.abs() / push)]
    )
    left = largest([(last[0] - end).abs() / size, last[1].abs() / push])
    # Beyond the cutoff only rounding errors are allowed; just before it, small values.
    return left if outside < 1e-9 else max(left, 1.0)


def _at_distance(case: Case, potential: Potential, distance: float) -> tuple[Tensor, Tensor]:
    """Energy [] and radial force [] of an atom at this distance from another, which has a neighbour."""
    positions = [[0.0, 0.0, 0.0], [0.0, 0.0, distance], [0.3, -0.8, -0.7]]
    batch = Batch.of(System.create(positions, case.molecule.atomic_numbers[:3]))
    result = evaluate(potential, batch, brute_force(batch, 3 * float(potential.config.cutoff)))
    assert result.forces is not None
    return result.energy[0], result.forces[1, 2]


def force_differences(case: Case) -> float:
    """Compares forces with central differences of the energy along directions in which all atoms move."""
    errors = []
    for system in (case.molecule, case.crystal):
        forces = case.forces_of(system)
        for seed in range(DIRECTIONS):
            direction = _random(system.num_atoms, 3, seed=seed)
            displaced = [with_positions(system, system.positions + sign * STEP * direction) for sign in (1, -1)]
            up, down = (evaluate(case.potential, each, forces=False).energy[0] for each in displaced)
            errors.append(((up - down) / (2 * STEP) + (forces * direction).sum()).abs() / case.scale)
    return largest(errors)


def stress_differences(case: Case) -> float:
    """Compares the stress of the crystal with central differences of the energy under strain."""
    system, errors = case.crystal, []
    result = evaluate(case.potential, system, stress=True)
    assert result.stress is not None
    virial = result.stress[0] * volume(system.cell[None])[0]
    for seed in range(DIRECTIONS):
        strain = _random(3, 3, seed=seed)
        strain = strain + strain.T
        up, down = (
            evaluate(
                case.potential, with_positions(system, system.positions @ change, system.cell @ change), forces=False
            )
            for change in (
                torch.eye(3, dtype=strain.dtype, device=strain.device) + sign * STEP * strain for sign in (1, -1)
            )
        )
        slope = (up.energy[0] - down.energy[0]) / (2 * STEP)
        errors.append((slope - (virial * strain).sum()).abs() / max(case.scale, float(virial.abs().max())))
    return largest(errors)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device="cpu", generator=torch.Generator().manual_seed(seed))
