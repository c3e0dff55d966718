"""Beads against `evaluate`, one structure at a time: units, virial, numbers of copies that change."""

import numpy as np
import pytest
import torch
from ase import Atoms
from structures import STRUCTURES

from torchmdx import System, evaluate
from torchmdx.ipi.beads import MOST_STEPS, Beads, load_beads
from torchmdx.step.results import NonFiniteError

# CODATA 2022, as numbers of their own.
BOHR, HARTREE = 0.529177210544, 27.211386245981


@pytest.fixture
def exact(make_potential):
    return make_potential().double().requires_grad_(False)


def copies(atoms: Atoms, count: int, seed: int = 0):
    """Positions and cells of distorted copies, in bohr."""
    rng = np.random.default_rng(seed)
    cell = atoms.cell.array if atoms.cell.rank == 3 else 30 * np.eye(3)
    places = atoms.positions + rng.normal(0, 0.05, (count, len(atoms), 3))
    return places / BOHR, np.repeat(cell[None], count, 0) * (1 + 0.01 * rng.random((count, 1, 1))) / BOHR


def expected(potential, system: System, positions, cell):
    one = System.create(positions * BOHR, system.atomic_numbers, cell * BOHR, system.pbc, system.charge)
    result = evaluate(potential, one, stress=True)
    virial = -result.stress[0].numpy() * abs(np.linalg.det(cell * BOHR))
    return result.energy.item() / HARTREE, result.forces.numpy() * BOHR / HARTREE, virial / HARTREE


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name not in ("bare_slab", "wire")])
def test_every_copy_is_evaluated(name, exact, request):
    atoms = request.getfixturevalue(name)
    system = System.from_ase(atoms)
    beads = Beads(exact, system)
    positions, cells = copies(atoms, 3)
    energies, forces, virials = beads(positions, cells)
    for k in range(3):
        energy, force, virial = expected(exact, system, positions[k], cells[k])
        assert energies[k] == pytest.approx(energy, rel=1e-12)
        np.testing.assert_allclose(forces[k], force, rtol=0, atol=1e-12)
        np.testing.assert_allclose(virials[k], virial, rtol=0, atol=1e-11)


def test_the_virial_is_the_derivative_of_the_energy(exact, crystal):
    system = System.from_ase(crystal)
    beads = Beads(exact, system)
    (positions,), (cell,) = copies(crystal, 1)
    _, _, (virial,) = beads(positions[None], cell[None])
    for i, j in ((0, 0), (1, 2)):
        ends = []
        for size in (1e-5, -1e-5):
            strain = np.zeros((3, 3))
            strain[i, j] += size / 2
            strain[j, i] += size / 2
            deform = np.eye(3) + strain
            ends.append(beads((positions @ deform)[None], (cell @ deform)[None])[0][0])
        assert virial[i, j] == pytest.approx(-(ends[0] - ends[1]) / 2e-5, abs=1e-7)


def test_numbers_of_copies_may_change(exact, ethanol):
    beads = Beads(exact, System.from_ase(ethanol))
    positions, cells = copies(ethanol, 9)
    whole = beads(positions, cells)
    for count in (2, 5, 1, 4, 8, 3, 9, 2):
        for part, found in zip(whole, beads(positions[:count], cells[:count]), strict=True):
            np.testing.assert_allclose(found, part[:count], rtol=0, atol=1e-12)
        assert len(beads.steps) <= MOST_STEPS
    # 1, 2, 5 and 9 are kept: 4, 8 and 3 use the next larger step.
    assert set(beads.steps) == {1, 2, 5, 9}
    grown = copies(ethanol, 12)
    beads(*grown)
    assert 12 in beads.steps
    assert len(beads.steps) == MOST_STEPS


def test_changing_cells_are_noticed(exact, crystal):
    """In one step, also after an evaluation that failed."""
    system = System.from_ase(crystal)
    beads = Beads(exact, system)
    beads(*copies(crystal, 2))
    for seed in (0, 1, 1, 2):
        positions, cells = copies(crystal, 2, seed)
        with pytest.raises(NonFiniteError):
            beads(np.full_like(positions, np.nan), cells * 1.1)
        for _ in range(2):
            for found, one, cell in zip(beads(positions, cells)[0], positions, cells, strict=True):
                assert found == pytest.approx(expected(exact, system, one, cell)[0], rel=1e-12)
    assert list(beads.steps) == [2]


def test_a_cell_without_volume_has_no_virial(exact, ethanol):
    beads = Beads(exact, System.from_ase(ethanol))
    _, forces, virials = beads(ethanol.positions[None] / BOHR, np.zeros((1, 3, 3)))
    assert np.abs(forces).max() > 0
    assert not virials.any()


def test_bad_requests_are_refused(exact, ethanol):
    beads = Beads(exact, System.from_ase(ethanol))
    with pytest.raises(ValueError, match=r"positions must have shape \[K, 9, 3\], got 2 of shape \[8, 3\]"):
        beads(np.zeros((2, 8, 3)), np.zeros((2, 3, 3)))
    with pytest.raises(
        ValueError, match=r"cells must have shape \[K, 3, 3\] .* K = 2 structures, got 1 of shape \[3, 3\]"
    ):
        beads(np.zeros((2, 9, 3)), np.zeros((1, 3, 3)))
    with pytest.raises(ValueError, match=r"got 2 of shape \[3, 2\]"):
        beads(np.zeros((2, 9, 3)), np.zeros((2, 3, 2)))
    with pytest.raises(ValueError, match=r"got 2 of shape \[8, 3\], \[10, 3\]"):
        beads([np.zeros((8, 3)), np.zeros((10, 3))], np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match=r"got 1 of shape \[9, 2\]"):
        beads(np.zeros((1, 9, 2)), np.zeros((1, 3, 3)))
    positions, cells = copies(ethanol, 2)
    good = beads(positions, cells)[0]
    with pytest.raises(ValueError, match=r"of K = 1 structures, got 2 of shape \[3, 3\]"):
        beads(positions[:1], cells)
    wrong = positions.copy()
    wrong[1, 3] = np.nan
    with pytest.raises(NonFiniteError):
        beads(wrong, cells)
    np.testing.assert_array_equal(beads(positions, cells)[0], good)


def test_loading(ethanol):
    beads = load_beads(None, ethanol, dtype="float64", device="cpu")
    assert beads.potential.dtype == torch.float64
    with pytest.warns(UserWarning, match="closed shells"):
        assert load_beads(None, ethanol, dtype="float32", device="cpu", charge=1).system.charge == 1
    with pytest.raises(ValueError, match="dtype must be one of float32, .*, got 'float16'"):
        load_beads(None, ethanol, dtype="float16")
    ethanol.set_cell(9 * np.eye(3))
    ethanol.pbc = True
    with pytest.warns(UserWarning, match="periodic"):
        load_beads(None, ethanol, dtype="float32", device="cpu")


@pytest.mark.gpu
def test_beads_are_one_graph_on_a_gpu(ethanol, graphs_pay):
    exact = load_beads(None, ethanol, dtype="float64", device="cpu")
    fast = load_beads(None, ethanol, dtype="float32", device="cuda")
    for seed in range(4):
        positions, cells = copies(ethanol, 8, seed)
        for found, wanted in zip(fast(positions, cells), exact(positions, cells), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2e-5)
    assert fast.steps[8].mode == "graph"
