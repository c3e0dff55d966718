"""A pool of steps agrees with the exact model for any structure; padding does not change results."""

import logging

import numpy as np
import pytest
import torch
from ase import Atoms
from structures import STRUCTURES

from torchmdx import Batch, System, evaluate
from torchmdx.step import pool as pool_module
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.padding import LARGEST_PADDED, padded, padded_size
from torchmdx.step.pool import StepPool
from torchmdx.step.results import NonFiniteError, OutOfDeviceMemory


@pytest.fixture(params=["as it is", "padded"])
def padding(request, monkeypatch):
    """Padded sizes on the CPU too, if the parameter is "padded"; on a GPU sizes are always padded."""
    if request.param == "padded":
        monkeypatch.setattr(StepPool, "_pads", True)
    return request.param


def exact(potential, atoms):
    return evaluate(potential, System.from_ase(atoms, device=potential.device), stress=True)


def assert_exact(result, wanted, tolerance=1e-10):
    np.testing.assert_allclose(result.energy, wanted.energy.cpu(), rtol=0, atol=tolerance)
    np.testing.assert_allclose(result.energies, wanted.energies.cpu(), rtol=0, atol=tolerance)
    np.testing.assert_allclose(result.forces, wanted.forces.cpu(), rtol=0, atol=tolerance)
    if result.stress is not None:
        np.testing.assert_allclose(result.stress, wanted.stress.cpu(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("size", [0, 1, 20])
def test_padding_changes_no_number(potential, name, size, request):
    system = System.from_ase(request.getfixturevalue(name))
    count = system.num_atoms
    batch = padded(system, count + size, potential.cutoff)
    assert (batch.num_atoms, batch.num_systems) == (count + size, 2)
    assert torch.equal(batch.counts(), torch.tensor([count, size]))
    alone, together = (evaluate(potential, structure, stress=True) for structure in (system, batch))
    np.testing.assert_allclose(together.energy[:1], alone.energy, rtol=0, atol=1e-12)
    np.testing.assert_allclose(together.energies[:count], alone.energies, rtol=0, atol=1e-12)
    np.testing.assert_allclose(together.forces[:count], alone.forces, rtol=0, atol=1e-12)
    np.testing.assert_allclose(together.stress[:1], alone.stress, rtol=0, atol=1e-12)
    assert (together.forces[count:] == 0).all()  # padding atoms have no neighbours


def test_padding_atoms_have_no_neighbours():
    batch = padded(System.create(np.zeros((1, 3)), [6]), 301, cutoff=5.0)
    distances = torch.pdist(batch.positions[1:])
    assert float(distances.min()) == pytest.approx(7.5)
    assert float(batch.positions.abs().max()) < 7.5 * 8


def walk(pool, potential, structures, tolerance=1e-10):
    for k, atoms in enumerate(structures):
        atoms.rattle(0.02, seed=k)
        assert_exact(pool(System.from_ase(atoms)), exact(potential, atoms), tolerance)


@pytest.mark.nightly_for("as it is")
@pytest.mark.usefixtures("padding")
def test_a_walk_over_structures_of_every_kind(trained, ethanol, cation, chiral, crystal, slab, bare_slab, wire, device):
    """Sizes, elements, charges and periodic directions change between calls."""
    potential = trained(device, torch.float64)
    pool = StepPool(potential, stress=True)
    neutral = cation.copy()
    neutral.info["charge"] = 0
    round_trip = [ethanol, cation, crystal, neutral, chiral, slab, bare_slab, wire]
    walk(pool, potential, [*round_trip, *round_trip[::-1], *round_trip])
    assert len(pool) <= 8


@pytest.mark.usefixtures("padding")
def test_in_float32_too(trained, ethanol, cation, crystal, device):
    potential = trained(device)
    pool = StepPool(potential)
    for k, atoms in enumerate([ethanol, cation, crystal] * 3):
        atoms.rattle(0.02, seed=k)
        found, wanted = pool(System.from_ase(atoms)), exact(trained(device, torch.float64), atoms)
        assert np.abs(found.forces - wanted.forces.cpu().numpy()).max() < 2e-5
        assert found.stress is None


def test_molecules_of_about_one_size_share_a_step(trained, ethanol, cation, chiral, device, padding):
    potential = trained(device, torch.float64)
    pool = StepPool(potential)
    walk(pool, potential, [ethanol[:6], cation, chiral, ethanol[:8], cation, ethanol[:3]])
    if padding == "padded" or device == "cuda":
        assert len(pool) == 1
        assert pool.steps[0].batch.num_atoms == 8
        assert pool.steps[0].num_evaluations == 6
    else:
        assert sorted(step.batch.num_atoms for step in pool.steps) == [3, 5, 6, 8]


@pytest.mark.gpu
def test_a_shared_step_is_captured_once(trained, ethanol, cation, chiral):
    pool = StepPool(trained("cuda"), mode="graph")  # whether a graph is faster is no matter of a test
    for _ in range(3):
        for atoms in (ethanol[:7], cation, chiral):
            pool(System.from_ase(atoms))
    (step,) = pool.steps
    assert step.mode == "graph"
    graph = step.policy.graphs["host"]
    pool(System.from_ase(ethanol[:4]))
    assert step.policy.graphs["host"] is graph


def test_the_least_recently_used_step_is_dropped(trained, ethanol, device, monkeypatch):
    monkeypatch.setattr(pool_module, "SHARED_UP_TO", 0)
    potential = trained(device)
    pool = StepPool(potential, most_steps=2)
    chain = Atoms("H20", [[1.1 * k, 0, 0] for k in range(20)])
    small, middle, large = (System.from_ase(atoms) for atoms in (chain[:6], ethanol, chain))
    pool(small)
    kept = pool.steps[-1]
    pool(middle)
    pool(small)  # now the middle one is the oldest
    pool(large)
    assert len(pool) == 2
    assert pool.steps[0] is kept
    assert pool.steps[1].batch.num_atoms in (20, 24)
    pool(small)
    assert pool.steps[1] is kept
    assert kept.num_evaluations == 3
    pool(middle)
    assert [step.batch.num_atoms in (20, 24) for step in pool.steps] == [False, False]
    pool.clear()
    assert len(pool) == 0
    walk(pool, trained(device), [ethanol], tolerance=1e-4)


def test_only_changed_structures_are_assigned(trained, cation, monkeypatch):
    pool = StepPool(trained("cpu"))
    given = []
    pool(System.from_ase(cation))
    monkeypatch.setattr(pool.steps[0], "assign", given.append)
    for change in (
        lambda: cation.rattle(0.1),
        lambda: cation.info.update(charge=0),
        lambda: cation.numbers.put(0, 14),
        lambda: None,
    ):
        change()
        pool(System.from_ase(cation))
    assert [float(batch.charge[0]) for batch in given] == [0.0, 0.0]
    assert [int(batch.atomic_numbers[0]) for batch in given] == [7, 14]


def test_periodic_and_open_structures_do_not_share(trained, crystal):
    pool = StepPool(trained("cpu"))
    molecule = crystal.copy()
    molecule.pbc = False
    pool(System.from_ase(crystal))
    pool(System.from_ase(molecule))
    assert len(pool) == 2


@pytest.mark.usefixtures("padding")
def test_the_system_is_not_modified_and_results_are_copies(trained, crystal, device):
    pool, system = StepPool(trained(device), stress=True), System.from_ase(crystal)
    kept = system.positions.clone(), system.cell.clone()
    first = pool(system)
    copied = {name: getattr(first, name).copy() for name in ("energy", "energies", "forces", "stress")}
    crystal.rattle(0.1, seed=3)
    other = pool(System.from_ase(crystal))
    assert np.abs(other.forces - first.forces).max() > 1e-3
    for name, value in copied.items():
        np.testing.assert_array_equal(getattr(first, name), value)
    assert torch.equal(system.positions, kept[0])
    assert torch.equal(system.cell, kept[1])
    assert (first.energy.shape, first.forces.shape, first.stress.shape) == ((1,), (3, 3), (1, 3, 3))


@pytest.mark.usefixtures("padding")
def test_overflow_in_a_shared_step_is_recovered(trained, cation, device, caplog):
    """A step created for a stretched molecule evaluates one in which all atoms are neighbours."""
    potential = trained(device, torch.float64)
    pool = StepPool(potential)
    wide = Atoms("H5", [[20.0 * k, 0, 0] for k in range(5)])
    pool(System.from_ase(wide))
    step = pool.steps[0]
    step.search.allocate(step.ordered, capacity=5)
    step.engine.reserve(5)
    with caplog.at_level(logging.INFO, "torchmdx.step.captured_step"):
        walk(pool, potential, [cation])
    assert step.num_recoveries == 1
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("padding")
def test_atoms_that_are_not_finite_are_named(trained, ethanol, device):
    pool, system = StepPool(trained(device)), System.from_ase(ethanol)
    wanted = pool(system).forces
    broken = System.from_ase(ethanol)
    broken.positions[4, 2] = torch.nan
    with pytest.raises(NonFiniteError, match="atom 4$"):
        pool(broken)
    np.testing.assert_allclose(pool(system).forces, wanted, rtol=0, atol=1e-5)


def test_an_unknown_element_does_not_change_the_pool(trained, cation, device):
    pool, system = StepPool(trained(device)), System.from_ase(cation)
    wanted = pool(system).forces
    cation.numbers[1] = 79
    with pytest.raises(ValueError, match="this potential knows atomic numbers up to 35, got 79 for atom 1"):
        pool(System.from_ase(cation))
    np.testing.assert_array_equal(pool(system).forces, wanted)


def test_no_atoms(trained, device):
    result = StepPool(trained(device))(System.create(np.zeros((0, 3)), []))
    assert result.energy.tolist() == [0.0]
    assert result.forces.shape == (0, 3)


def test_padded_sizes_are_few_and_waste_little():
    counts = range(1, LARGEST_PADDED + 1)
    sizes = [padded_size(count) for count in counts]
    assert sizes == sorted(sizes)
    assert all(size >= count for size, count in zip(sizes, counts, strict=True))
    assert all(size - count <= max(7, count / 8) for size, count in zip(sizes, counts, strict=True))
    assert len(set(sizes)) < 60
    assert sizes[:9] == [8] * 8 + [16]


def test_the_largest_structures_are_not_padded():
    assert padded_size(LARGEST_PADDED + 1) == LARGEST_PADDED + 1
    assert padded_size(100_003) == 100_003


@pytest.mark.parametrize("most", [0, -3])
@pytest.mark.parametrize("name", ["most_steps", "most_memory"])
def test_a_pool_keeps_at_least_one_step(trained, name, most):
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got {most}"):
        StepPool(trained("cpu"), **{name: most})


def hydrogens(count):
    return System.from_ase(Atoms(f"H{count}", [[1.1 * k, 0, 0] for k in range(count)]))


def sizes(pool):
    return [step.batch.num_atoms for step in pool.steps]


def test_few_atoms_use_a_step_of_up_to_twice_their_size(trained, monkeypatch):
    monkeypatch.setattr(StepPool, "_pads", True)
    monkeypatch.setattr(pool_module, "OWN_AFTER", 3)
    potential = trained("cpu", torch.float64)
    pool = StepPool(potential)
    for count in (30, 20, 12, 15, 16):
        assert_exact(pool(hydrogens(count)), evaluate(potential, hydrogens(count)))
    assert sizes(pool) == [32]
    pool(hydrogens(14))  # the fourth of its size, after the three that a size shares
    assert sizes(pool) == [32, 16]
    pool(hydrogens(5))
    assert sizes(pool) == [32, 16]
    pool(hydrogens(20))
    assert sizes(pool) == [16, 32]


def test_larger_structures_do_not_share(trained, monkeypatch):
    monkeypatch.setattr(StepPool, "_pads", True)
    monkeypatch.setattr(pool_module, "SHARED_UP_TO", 24)
    pool = StepPool(trained("cpu"))
    for count in (40, 30, 20, 10):
        pool(hydrogens(count))
    assert sizes(pool) == [40, 32, 24]


def test_steps_are_dropped_once_they_exceed_the_memory(trained, monkeypatch):
    monkeypatch.setattr(StepPool, "_pads", True)
    monkeypatch.setattr(CapturedStep, "memory_bytes", lambda step: 1000 * step.batch.num_atoms)
    pool = StepPool(trained("cpu"), most_steps=20, most_memory=100_000)
    for count in (24, 40, 8):
        pool(hydrogens(count))
    assert sizes(pool) == [24, 40, 8]
    pool(hydrogens(24))
    pool(hydrogens(64))
    assert sizes(pool) == [8, 24, 64]
    pool(hydrogens(120))  # more than the limit on its own
    assert sizes(pool) == [120]


def test_other_steps_make_room_where_memory_runs_out(trained, monkeypatch):
    pool = StepPool(trained("cpu"))
    made = pool._make_step

    def make(batch):
        if len(pool):
            raise OutOfDeviceMemory("full")
        return made(batch)

    monkeypatch.setattr(pool, "_make_step", make)
    pool(hydrogens(5))
    found = pool(hydrogens(9))
    assert sizes(pool) == [9]
    assert np.isfinite(found.energy).all()


def test_memory_that_runs_out_for_one_step_alone_is_an_error(trained, monkeypatch):
    pool = StepPool(trained("cpu"))

    def refuse(batch):
        raise OutOfDeviceMemory("full")

    monkeypatch.setattr(pool, "_make_step", refuse)
    with pytest.raises(OutOfDeviceMemory, match="full"):
        pool(hydrogens(5))


def test_settings_reach_the_steps(trained, ethanol, monkeypatch):
    made = {}

    def record(potential, batch, **settings):
        made.update(settings)
        raise InterruptedError

    monkeypatch.setattr(pool_module, "CapturedStep", record)
    pool = StepPool(trained("cpu"), mode="eager", stress=True, precision="float32", audit_every=7, engine="pairs")
    with pytest.raises(InterruptedError):
        pool(System.from_ase(ethanol))
    wanted = dict(mode="eager", stress=True, energies=True, precision="float32", audit_every=7, engine="pairs")
    assert made == wanted | {"uncertainty": False, "max_memory": None}
    assert isinstance(padded(System.from_ase(ethanol), 16, 5.0), Batch)


@pytest.mark.usefixtures("padding")
def test_other_positions_of_a_system(trained, ethanol, crystal, device):
    """They need no new System, whichever structures come between."""
    potential = trained(device, torch.float64)
    pool, rng = StepPool(potential, stress=True, most_steps=1), np.random.default_rng(0)
    systems = [(System.from_ase(atoms), atoms) for atoms in (ethanol, ethanol[:7], crystal)]
    for system, atoms in [systems[k] for k in (0, 0, 1, 1, 0, 2, 2, 0)]:
        before = system.positions.clone()
        atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
        assert_exact(pool(system, atoms.positions), exact(potential, atoms))
        assert torch.equal(system.positions, before)


def test_positions_of_another_shape_are_refused(trained, ethanol):
    pool, system = StepPool(trained("cpu")), System.from_ase(ethanol)
    pool(system, ethanol.positions)
    with pytest.raises(ValueError, match="positions must have shape"):
        pool(system, ethanol.positions[:1])
