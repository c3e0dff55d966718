"""What an audit of a batch compares: whole systems, or a few atoms of one that is too large."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch

# Systems that are compared as a whole: most atoms of small ones in total, and of a single one.
MOST_ATOMS = 600
MOST_WHOLE = 3000
# Most atoms that are drawn from a larger system.
MOST_CENTRES = 32


@dataclass(frozen=True)
class Drawn:
    """whole: systems that are compared as a whole, ascending. part: a larger one, of which a few atoms are compared."""

    whole: tuple[int, ...]
    part: int | None = None


def draw(counts: Sequence[int], number: int) -> Drawn:
    """Chooses among systems with these numbers of atoms: all if they fit, else those drawn with seed `number`."""
    order = list(range(len(counts)))
    random.Random(number).shuffle(order)
    whole, room = [], MOST_ATOMS
    for system in order:
        if counts[system] <= room:
            whole.append(system)
            room -= counts[system]
    larger = next((system for system in order if counts[system] > MOST_ATOMS), None)
    if larger is not None and counts[larger] <= MOST_WHOLE:
        whole, larger = [*whole, larger], None
    return Drawn(tuple(sorted(whole)), larger)


def draw_centres(batch: Batch, system: int, number: int) -> list[int]:
    """Different atoms of a system, in the order in which their environments are compared; others for another number."""
    counts = batch.counts().tolist()
    first, count = sum(counts[:system]), counts[system]
    if isinstance(batch, Domain):
        count = int(batch.within[-1])  # without padding atoms
    drawn = random.Random(number)
    return list(dict.fromkeys(first + drawn.randrange(count) for _ in range(MOST_CENTRES)))


def select(batch: Batch, systems: Sequence[int]) -> tuple[Batch, Tensor]:
    """These systems of a batch, in ascending order, and which atoms they have."""
    chosen = torch.tensor(systems, dtype=torch.int64, device=batch.positions.device)
    if len(systems) == batch.num_systems:
        return batch, torch.arange(batch.num_atoms, device=chosen.device)
    place = torch.full((batch.num_systems,), -1, device=chosen.device)
    place[chosen] = torch.arange(len(systems), device=chosen.device)
    atoms = (place[batch.system_index] >= 0).nonzero().squeeze(-1)
    part = replace(
        batch,
        positions=batch.positions[atoms],
        atomic_numbers=batch.atomic_numbers[atoms],
        system_index=place[batch.system_index[atoms]],
        cell=batch.cell[chosen],
        pbc=batch.pbc[chosen],
        charge=batch.charge[chosen],
        partial_charges=None if batch.partial_charges is None else batch.partial_charges[atoms],
    )
    return part, atoms
