"""Checks of how energy and forces answer to geometry; each gives its error relative to the largest force."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.cell import volume
from torchmdx.conformance.structures import Case, apart, largest, moved
from torchmdx.evaluate import evaluate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.system import Batch, System

# Of central differences: displacements in Å, strains without unit.
STEP = 3e-5
DIRECTIONS = 4
# Where the interaction of a pair is looked at, in cutoffs: as it fades, just before its end, and beyond.
FADING, BEFORE, BEYOND = (0.8, 0.85, 0.9, 0.95), 1 - 1e-4, (1 + 1e-4, 1.2, 1.5)


def turned(case: Case, *, mirror: bool) -> float:
    """Rotated, or mirrored: energies must stay, and forces turn too."""
    turn = torch.linalg.qr(_random(3, 3))[0]
    turn = turn * torch.linalg.det(turn).sign() * (-1 if mirror else 1)
    errors = []
    for system in (case.molecule, case.crystal):
        before = evaluate(case.potential, system)
        assert before.forces is not None
        after = evaluate(case.potential, moved(system, system.positions @ turn.T, system.cell @ turn.T))
        errors.append(torch.tensor(apart(after, replace(before, forces=before.forces @ turn.T), case.scale)))
    return largest(errors)


def permuted(case: Case) -> float:
    """The same atoms in another order."""
    system, order = case.molecule, torch.tensor([4, 0, 8, 3, 2, 7, 1, 5, 6])
    before = evaluate(case.potential, system)
    assert before.forces is not None
    other = System.create(system.positions[order], system.atomic_numbers[order])
    wanted = replace(before, energies=before.energies[order], forces=before.forces[order])
    return apart(evaluate(case.potential, other), wanted, case.scale)


def batched(case: Case) -> float:
    """Molecule, crystal and a moved molecule in one batch, and each alone."""
    other = moved(case.molecule, 1.03 * case.molecule.positions)
    systems = [case.molecule, case.crystal, other]
    together = evaluate(case.potential, Batch.from_systems(systems))
    alone = [evaluate(case.potential, system) for system in systems]
    energies = torch.cat([result.energies for result in alone])
    forces = torch.cat([result.forces for result in alone if result.forces is not None])
    return apart(together, replace(together, energies=energies, forces=forces), case.scale)


def supercell(case: Case) -> float:
    """The crystal, and the same with its cell doubled along one lattice vector: everything stays, an atom."""
    small, shift = case.crystal, float(case.potential.shift)
    twice = torch.cat([small.positions, small.positions + small.cell[1]])
    lattice = small.cell * torch.tensor([[1.0], [2.0], [1.0]], dtype=small.cell.dtype)
    large = System.create(twice, small.atomic_numbers.repeat(2), lattice, True)
    one, two = evaluate(case.potential, small), evaluate(case.potential, large)
    assert one.forces is not None
    # The shift belongs to a system, and is shared by its atoms.
    energies = (one.energies - shift / small.num_atoms).repeat(2) + shift / large.num_atoms
    return apart(two, replace(two, energies=energies, forces=one.forces.repeat(2, 1)), case.scale)


def lone_atom(case: Case) -> float:
    """One atom beside nothing, in a batch with a molecule."""
    atom = System.create([[0.0, 0.0, 0.0]], case.molecule.atomic_numbers[:1])
    result = evaluate(case.potential, Batch.from_systems([case.molecule, atom]))
    assert result.forces is not None
    if not bool(torch.isfinite(result.energies[-1])):
        raise ValueError(f"the energy of a lone atom must be finite, got {float(result.energies[-1])}")
    return float(result.forces[-1].abs().max()) / case.scale


def at_the_cutoff(case: Case) -> float:
    """An atom drawn away from two others: what is left of energy and force at the cutoff, relative to just before.

    The list reaches beyond the cutoff, as it does in a step with a skin: nothing may come from there. Priors have
    cutoffs of their own and are left out.
    """
    potential = case.potential.with_priors([])
    cutoff = float(potential.config.cutoff)
    fading = [_drawn(case, potential, cutoff * part) for part in FADING]
    last, *beyond = (_drawn(case, potential, cutoff * part) for part in (BEFORE, *BEYOND))
    end = beyond[-1][0]
    size = max(largest([(energy - end).abs() for energy, _ in fading]), 1e-6 * case.scale)
    push = max(largest([force.abs() for _, force in fading]), 1e-6 * case.scale)
    outside = largest(
        [value for energy, force in beyond for value in ((energy - end).abs() / size, force.abs() / push)]
    )
    left = largest([(last[0] - end).abs() / size, last[1].abs() / push])
    # Beyond the cutoff there is nothing, to rounding; before it, only little.
    return left if outside < 1e-9 else max(left, 1.0)


def _drawn(case: Case, potential: Potential, distance: float) -> tuple[Tensor, Tensor]:
    """Energy [] and the force [] along the line of an atom at this distance of another that has a neighbour."""
    positions = [[0.0, 0.0, 0.0], [0.0, 0.0, distance], [0.3, -0.8, -0.7]]
    batch = Batch.of(System.create(positions, case.molecule.atomic_numbers[:3]))
    result = evaluate(potential, batch, brute_force(batch, 3 * float(potential.config.cutoff)))
    assert result.forces is not None
    return result.energy[0], result.forces[1, 2]


def force_differences(case: Case) -> float:
    """Forces against central differences of the energy, along directions in which all atoms move."""
    errors = []
    for system in (case.molecule, case.crystal):
        forces = case.forces_of(system)
        for seed in range(DIRECTIONS):
            way = _random(system.num_atoms, 3, seed=seed)
            up, down = (
                evaluate(case.potential, moved(system, system.positions + sign * STEP * way), forces=False).energy[0]
                for sign in (1, -1)
            )
            errors.append(((up - down) / (2 * STEP) + (forces * way).sum()).abs() / case.scale)
    return largest(errors)


def stress_differences(case: Case) -> float:
    """Stress of the crystal against central differences of the energy in strains of cell and positions."""
    system, errors = case.crystal, []
    result = evaluate(case.potential, system, stress=True)
    assert result.stress is not None
    virial = result.stress[0] * volume(system.cell[None])[0]
    for seed in range(DIRECTIONS):
        strain = _random(3, 3, seed=seed)
        strain = strain + strain.T
        up, down = (
            evaluate(case.potential, moved(system, system.positions @ change, system.cell @ change), forces=False)
            for change in (torch.eye(3, dtype=strain.dtype) + sign * STEP * strain for sign in (1, -1))
        )
        slope = (up.energy[0] - down.energy[0]) / (2 * STEP)
        errors.append((slope - (virial * strain).sum()).abs() / max(case.scale, float(virial.abs().max())))
    return largest(errors)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
