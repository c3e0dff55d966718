import numpy as np
import oracles
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.neighbors import brute_force as module
from torchmdx.neighbors.brute_force import brute_force


def found(edges):
    rows = zip(edges.target.tolist(), edges.source.tolist(), edges.shifts.tolist(), strict=True)
    return [(target, source, tuple(shift)) for target, source, shift in rows]


def wanted(atoms, cutoff, first=0):
    pairs = oracles.neighbours(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    return [(first + i, first + j, shift) for i, j, shift in pairs]


@pytest.mark.parametrize("cutoff", [1.3, 4.0, 7.5])
def test_every_kind_of_structure_agrees_with_the_loops(structure, cutoff):
    edges = brute_force(Batch.from_systems([System.from_ase(structure)]), cutoff)
    pairs = found(edges)
    assert sorted(pairs) == wanted(structure, cutoff)
    assert [pair[:2] for pair in pairs] == sorted(pair[:2] for pair in pairs)
    assert edges.row_ptr.tolist() == [sum(i < atom for i, _, _ in pairs) for atom in range(len(structure) + 1)]


@pytest.mark.nightly_for("3", "5")
@pytest.mark.parametrize("seed", range(6))
def test_random_cells_and_scattered_atoms_agree_with_the_loops(seed):
    random = np.random.default_rng(seed)
    cell = random.normal(0, 1, (3, 3)) + 3 * np.eye(3)[random.permutation(3)]
    pbc = random.random(3) < 0.7
    positions = random.normal(0, 6, (4, 3))
    system = System.create(positions, [1] * 4, cell, pbc)
    pairs = found(brute_force(Batch.from_systems([system]), 3.5))
    assert sorted(pairs) == oracles.neighbours(positions, cell, pbc, 3.5)


def test_an_atom_sees_its_own_images_but_not_itself():
    alone = System.create([[0.3, 0.1, 0.2]], [1], np.eye(3), True)
    pairs = found(brute_force(Batch.from_systems([alone]), 1.1))
    unit = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
    assert sorted(pairs) == sorted((0, 0, shift) for shift in unit)


def test_a_batch_has_the_edges_of_its_systems(ethanol, crystal, bare_slab, wire):
    structures = [ethanol, crystal, bare_slab, wire]
    edges = brute_force(Batch.from_systems([System.from_ase(atoms) for atoms in structures]), 4.0)
    firsts = np.cumsum([0] + [len(atoms) for atoms in structures])
    pairs = [pair for atoms, first in zip(structures, firsts[:-1], strict=True) for pair in wanted(atoms, 4.0, first)]
    assert sorted(found(edges)) == sorted(pairs)


def test_the_order_within_a_row_is_by_source_then_shift(crystal):
    crystal.wrap()
    pairs = found(brute_force(Batch.from_systems([System.from_ase(crystal)]), 6.0))
    assert pairs == sorted(pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_pair_stands_in_both_directions(crystal, dtype):
    batch = Batch.from_systems([System.from_ase(crystal, dtype=dtype)])
    pairs = found(brute_force(batch, 6.0))
    assert {(j, i, tuple(-n for n in shift)) for i, j, shift in pairs} == set(pairs)


def test_a_pair_at_the_cutoff_is_left_out():
    dimer = Batch.from_systems([System.create([[0, 0, 0], [0, 0, 2.0]], [1, 1])])
    assert int(brute_force(dimer, 2.0).num_edges) == 0
    assert int(brute_force(dimer, 2.0 + 1e-12).num_edges) == 2


def test_looking_in_pieces_changes_nothing(crystal, monkeypatch):
    batch = Batch.from_systems([System.from_ase(crystal * (2, 1, 1))])
    whole = brute_force(batch, 4.0)
    monkeypatch.setattr(module, "CHUNK", 1)
    pieces = brute_force(batch, 4.0)
    assert torch.equal(whole.source, pieces.source)
    assert torch.equal(whole.shifts, pieces.shifts)


def test_a_capacity_pads_or_overflows(ethanol):
    batch = Batch.from_systems([System.from_ase(ethanol)])
    count = brute_force(batch, 2.0).capacity
    padded, cut = brute_force(batch, 2.0, count + 5), brute_force(batch, 2.0, count - 1)
    assert (padded.capacity, int(padded.num_edges), bool(padded.overflow)) == (count + 5, count, False)
    assert (cut.capacity, int(cut.needed), bool(cut.overflow)) == (count - 1, count, True)


@pytest.mark.parametrize("atoms", [[], [[0.0, 0.0, 0.0]]])
def test_no_atoms_and_one_atom_have_no_edges(atoms):
    edges = brute_force(Batch.from_systems([System.create(atoms, [1] * len(atoms))]), 5.0)
    assert (edges.num_atoms, edges.capacity) == (len(atoms), 0)


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan, np.inf])
def test_a_cutoff_that_is_no_length_is_refused(cutoff, ethanol):
    with pytest.raises(ValueError, match=f"cutoff must be > 0 Å and finite, got {cutoff}"):
        brute_force(Batch.from_systems([System.from_ase(ethanol)]), cutoff)
