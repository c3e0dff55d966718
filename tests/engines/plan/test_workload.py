"""How much is evaluated, where no list of edges is known."""

from torchmdx.engines.plan import Workload


def test_an_atom_has_the_usual_neighbours_or_all_others():
    assert [Workload.usual(atoms).capacity for atoms in (0, 1, 9, 100)] == [0, 0, 72, 4800]


def test_rows_and_slots_are_never_empty():
    assert (Workload(atoms=3).slots, Workload(atoms=3).rows) == (1, 4)
