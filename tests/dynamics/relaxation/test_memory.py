from types import SimpleNamespace

from torchmdx.dynamics.relaxation.memory import PROBE_ATOMS, SHARE, probe_tasks, scaled


def tasks(sizes) -> list:
    return [SimpleNamespace(num_atoms=size) for size in sizes]


def test_a_probe_holds_some_atoms_of_all_sizes():
    found = probe_tasks(tasks(sorted(list(range(8, 41)) * 30, reverse=True)))
    sizes = [task.num_atoms for task in found]
    assert PROBE_ATOMS / 2 < sum(sizes) < 2 * PROBE_ATOMS
    assert max(sizes) - min(sizes) > 20
    assert [task.num_atoms for task in probe_tasks(tasks([5000]))] == [5000]
    assert sum(task.num_atoms for task in probe_tasks(tasks([3000, 2, 2, 2]))) in (3000, 2, 4, 6)


def test_an_estimate_is_proportional_and_never_below_the_largest():
    assert scaled(1000, 10, 10**6, largest=5) == int(SHARE * 10**4)
    assert scaled(1000, 10, 100, largest=7) == 7
