"""The contract of engines: a function for each behaviour, which returns its error or raises.

The oracle is the reference model in float64 on the CPU. Errors are relative to the largest force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from torchmdx.engines.conformance.subject import Subject, copied, largest_difference
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.system import Batch, System

SPARE = 37  # empty slots
SKIN = 0.6  # Å that a list may reach beyond the cutoff
FAR = 2.0**14  # Å from the origin, where float32 resolves 1e-3 Å


def _require(holds: bool, what: str) -> float:
    """Returns 0. Raises ValueError with what does not hold."""
    if not holds:
        raise ValueError(what)
    return 0.0


def answers(subject: Subject) -> float:
    """Energies and forces of a molecule."""
    batch = subject.batch(subject.molecule)
    found = subject.run(batch)
    dtypes = found.energy.dtype, found.energies.dtype
    _require(dtypes == (torch.float64,) * 2, f"energy and energies must be float64, got {dtypes}")
    tensors = [value for value in vars(found).values() if value is not None]
    _require(not any(value.requires_grad for value in tensors), "outputs must not require gradients")
    _require((found.stress is not None) == subject.stress, f"stress was asked for: {subject.stress}")
    return subject.error(found, subject.oracle(batch))


def periodic(subject: Subject) -> float:
    """Energies and forces of a crystal whose cell is smaller than most cutoffs."""
    batch = subject.batch(subject.crystal)
    return subject.error(subject.run(batch), subject.oracle(batch))


def stress(subject: Subject) -> float:
    """Stress of a crystal, relative to the largest component; NaN of a molecule, which has no volume."""
    batch = subject.batch(subject.crystal, subject.molecule)
    found, wanted = subject.run(batch).stress, subject.oracle(batch).stress
    assert wanted is not None
    if found is None:
        raise ValueError("stress must be returned when it is requested, got None")
    _require(bool(found[1].isnan().all()), f"the stress of a molecule must be NaN, got {found[1].tolist()}")
    return largest_difference(found[:1], wanted[:1]) / float(wanted[0].abs().max())


def batched(subject: Subject) -> float:
    """Several systems, one of a single atom and one of no atoms, with charges of their own."""
    none, lone = (
        System.create(torch.zeros(0, 3), []),
        System.create([[0.0, 0.0, 0.0]], subject.molecule.atomic_numbers[:1]),
    )
    charged = replace(subject.molecule, charge=1.0)
    batch = subject.batch(charged, none, subject.crystal, lone, subject.molecule)
    return subject.error(subject.run(batch), subject.oracle(batch))


def empty(subject: Subject) -> float:
    """A system without atoms."""
    batch = subject.batch(System.create(torch.zeros(0, 3), []))
    found = subject.run(batch)
    _require(found.energy.tolist() == [0.0], f"the energy of no atoms must be 0, got {found.energy.tolist()}")
    return subject.error(found, subject.oracle(batch))


def lone(subject: Subject) -> float:
    """One atom without neighbours: an energy, and exactly no force."""
    batch = subject.batch(System.create([[1.0, 2.0, 3.0]], subject.molecule.atomic_numbers[:1]))
    found = subject.run(batch)
    _require(found.forces.tolist() == [[0.0] * 3], f"the force on a lone atom must be 0, got {found.forces.tolist()}")
    return subject.error(found, subject.oracle(batch))


def not_a_number(subject: Subject) -> float:
    """A position that is NaN, and atoms at one place, give no finite energy of their system."""
    batch = subject.batch(subject.molecule)
    edges = subject.edges(batch)
    for place in (torch.full((3,), float("nan")), batch.positions[1].cpu()):
        spoiled = batch.positions.clone()
        spoiled[0] = place.to(spoiled)
        energy = subject.run(replace(batch, positions=spoiled), edges).energy
        _require(not bool(energy.isfinite().any()), f"the energy must not be finite, got {energy.tolist()}")
    return 0.0


def equal_bits(subject: Subject) -> float:
    """The same input gives the same bits, from the same engine and from another, also after other positions.

    If the engine has `deterministic = False`, with torch's deterministic algorithms.
    """
    batch = subject.batch(subject.molecule, subject.crystal)
    edges = subject.edges(batch)
    engine = subject.engine(batch)
    engine.reserve(edges.capacity)
    with _deterministic(not getattr(engine, "deterministic", True)):
        first = subject.run(batch, edges, engine)
        subject.run(replace(batch, positions=batch.positions + 0.1), edges, engine)
        for again in (subject.run(batch, edges, engine), subject.run(batch, edges)):
            for name in ("energy", "energies", "forces"):
                _require(torch.equal(getattr(again, name), getattr(first, name)), f"{name} must be equal bit for bit")
    return 0.0


@contextmanager
def _deterministic(needed: bool) -> Iterator[None]:
    """torch's deterministic algorithms, if they are needed."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if needed:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def energy_alone(subject: Subject) -> float:
    """Without forces the energies are the same, and with them again so are the forces."""
    batch = subject.batch(subject.molecule, subject.crystal)
    edges, engine = subject.edges(batch), subject.engine(batch)
    engine.reserve(edges.capacity)
    alone = subject.run(batch, edges, engine, forces=False)
    wanted = subject.oracle(batch)
    after = subject.error(subject.run(batch, edges, engine), wanted)
    return max(
        after,
        largest_difference(alone.energies, wanted.energies) / (subject.scale + float(wanted.energies.abs().max())),
    )


def padded(subject: Subject) -> float:
    """Empty slots, and edges beyond the cutoff, contribute nothing."""
    batch = subject.batch(subject.crystal, subject.molecule)
    wanted = subject.oracle(batch)
    lists = [subject.edges(batch, skin, spare) for skin, spare in ((0.0, SPARE), (SKIN, 0), (SKIN, SPARE))]
    return max(subject.error(subject.run(batch, edges), wanted) for edges in lists)


def overflow(subject: Subject) -> float:
    """A list that is too short raises nothing, and after it has grown results are right."""
    batch = subject.batch(subject.crystal, subject.molecule)
    full, engine = subject.edges(batch), subject.engine(batch)
    short = brute_force(batch, subject.potential.search_cutoff(batch), full.capacity // 2)
    _require(bool(short.overflow), "the list of this check must overflow")
    engine.reserve(short.capacity)
    subject.run(batch, short, engine)
    longer = subject.edges(batch, spare=SPARE)
    engine.reserve(longer.capacity)
    return subject.error(subject.run(batch, longer, engine), subject.oracle(batch))


def in_place(subject: Subject) -> float:
    """Elements and charges are those of the batch at each run; positions, cells and lists are only read."""
    batch = subject.batch(subject.molecule)
    edges, engine = subject.edges(batch), subject.engine(batch)
    engine.reserve(edges.capacity)
    given = [batch.positions, batch.cell, edges.row_ptr, edges.source, edges.target, edges.shifts]
    before = [tensor.clone() for tensor in given]
    subject.run(batch, edges, engine)
    unchanged = all(map(torch.equal, given, before))
    _require(unchanged, "positions, cell and edges must not be written to")
    batch.charge.fill_(1.0)
    batch.atomic_numbers.copy_(batch.atomic_numbers.flip(0))
    return subject.error(subject.run(batch, edges, engine), subject.oracle(batch))


def far_away(subject: Subject) -> float:
    """Positions in float64 far from the origin lose nothing."""
    moved = replace(subject.molecule, positions=subject.molecule.positions + FAR)
    batch, wide = subject.batch(moved), Batch.of(moved).to(subject.potential.device)
    batch = replace(batch, positions=wide.positions, cell=wide.cell)
    return subject.error(subject.run(batch), subject.oracle(batch))


def captured(subject: Subject) -> float:
    """On a GPU an evaluation can be captured: a replay gives the results of the positions that are there then."""
    batch = subject.batch(subject.molecule)
    edges, engine = subject.edges(batch, SKIN), subject.engine(batch)
    engine.reserve(edges.capacity)
    if batch.positions.device.type != "cuda":
        return subject.error(subject.run(batch, edges, engine), subject.oracle(batch))
    for _ in range(2):
        engine.run(batch.positions, batch.cell, edges)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = engine.run(batch.positions, batch.cell, edges)
    batch.positions.mul_(1.01)
    graph.replay()
    torch.cuda.synchronize()
    return subject.error(copied(outputs), subject.oracle(batch))


# Name, requirement, and the function that measures the error.
CONTRACT: tuple[tuple[str, str, Callable[[Subject], float]], ...] = (
    ("answers", "energies and forces of a molecule are those of the model", answers),
    ("periodic", "energies and forces of a crystal are those of the model", periodic),
    ("stress", "stress is that of the model, and NaN without a volume", stress),
    ("batch", "systems of any size and charge do not interact", batched),
    ("empty", "no atoms have no energy", empty),
    ("one atom", "an atom without neighbours has an energy and no force", lone),
    ("not a number", "positions without an energy give none that is finite", not_a_number),
    ("equal bits", "the same input gives the same bits", equal_bits),
    ("energy alone", "energies without forces are the same", energy_alone),
    ("padding", "empty slots and edges beyond the cutoff contribute nothing", padded),
    ("overflow", "a list that is too short raises nothing, and may grow", overflow),
    ("in place", "elements and charges are read at each run, inputs only read", in_place),
    ("far away", "float64 positions far from the origin lose nothing", far_away),
    ("captured", "on a GPU an evaluation can be captured and replayed", captured),
)
