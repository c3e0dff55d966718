"""What is evaluated, and the rows of a plan."""

from __future__ import annotations

from dataclasses import dataclass

# Neighbours of an atom within 5 Å in water and proteins, where no list is known yet.
USUAL_NEIGHBOURS = 48


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much is evaluated: atoms, systems, edge slots, and the number of elements (0: not known).

    Attributes:
        domain: The atoms are those of a `Domain`, of which kernels evaluate a part.
        periodic: Structures may be periodic.
        alone: No other engine runs on the device at the same time.
        last_inputs: The inputs of the last layer are results too, for the uncertainty of the energy.
        search_cutoff: Of the list of edges, Å, where priors need a longer one than the network; 0: that of the network.
        memory: Bytes that an evaluation may take; 0: what the device has.
        ordered: Atoms are in the order of slabs, or can still be brought into it.
    """

    atoms: int
    systems: int = 1
    capacity: int = 0
    elements: int = 0
    forces: bool = True
    stress: bool = False
    periodic: bool = True
    alone: bool = True
    domain: bool = False
    search_cutoff: float = 0.0
    last_inputs: bool = False
    memory: int = 0
    ordered: bool = True

    @classmethod
    def usual(cls, atoms: int, search_cutoff: float = 0.0) -> Workload:
        """One system of `atoms` atoms and four elements; an atom has USUAL_NEIGHBOURS, or all others if fewer."""
        neighbours = min(max(atoms - 1, 0), USUAL_NEIGHBOURS)
        return cls(atoms=atoms, capacity=atoms * neighbours, elements=4, search_cutoff=search_cutoff)

    @property
    def slots(self) -> int:
        return max(self.capacity, 1)

    @property
    def edges_of_atom(self) -> float:
        """Slots for edges of an atom; those usual in water where no list is known."""
        return self.capacity / self.atoms if self.capacity and self.atoms else USUAL_NEIGHBOURS

    @property
    def rows(self) -> int:
        """Of the network of edges: those of the atoms themselves, then those of the edges."""
        return self.atoms + self.slots


@dataclass(frozen=True)
class Stage:
    """One row of a plan: what runs for a stage of the evaluation, why, and what would run otherwise."""

    name: str
    runs: str
    why: str
    otherwise: str = ""
