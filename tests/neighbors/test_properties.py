"""Random structures of every kind against the oracle, ASE and vesin."""

import numpy as np
import pytest
import torch
from checks import TRITON, backends, batch_of, pairs, require_laid_out, require_neighbours
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from torchmdx.neighbors.search import EdgeSearch

FAST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Pairs of atoms times images that the oracle may have to look at.
MOST_WORK = 60_000


@st.composite
def structures(draw):
    """([(positions, cell, pbc)], cutoff): 1 to 128 systems of 300 atoms in all, cutoffs of 0.1 to 3 cell lengths."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([1, 1, 2, 5, 128]))
    most = {1: draw(st.sampled_from([1, 3, 30, 300])), 2: 20, 5: 8, 128: 3}[count]
    lengths = np.array(draw(st.tuples(*[st.sampled_from([1.0, 2.0, 6.0, 12.0])] * 3)))
    systems = []
    for _ in range(count):
        cell = np.diag(lengths) + random.normal(0, 0.3, (3, 3)) * lengths.min()
        cell = cell @ np.linalg.qr(random.normal(size=(3, 3)))[0]
        pbc = draw(st.tuples(st.booleans(), st.booleans(), st.booleans())) if count < 10 else random.random(3) < 0.5
        atoms = random.random((random.integers(1, most + 1), 3)) @ cell
        atoms += random.integers(-2, 3, atoms.shape) @ np.where(np.array(pbc)[:, None], cell, 0.0)
        systems.append((atoms, cell, pbc))
    cutoff = draw(st.floats(0.1, 3.0)) * float(draw(st.sampled_from([lengths.min(), lengths.mean()])))
    work = 0.0
    for atoms, cell, pbc in systems:
        heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
        assume(heights.min() > 0.1 * lengths.min())
        work += len(atoms) ** 2 * np.prod(np.where(pbc, 2 * cutoff / heights + 1, 1.0))
    assume(work < MOST_WORK)
    return systems, cutoff


@pytest.mark.nightly_for("dtype1-cell_list", "triton_brute_force", "triton_cell_list", "brute_force", "dtype0-vesin")
@pytest.mark.parametrize("backend", backends("brute_force", "cell_list", "vesin", *TRITON))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@FAST
@given(structure=structures())
def test_any_structure_has_the_neighbours_that_loops_find(backend, dtype, structure):
    systems, cutoff = structure
    edges = EdgeSearch(cutoff, backend=backend).allocate(batch_of(systems, backend, dtype))
    require_neighbours(edges, systems, cutoff, dtype)


@pytest.mark.nightly_for("cell_list", "brute_force", "vesin")
@pytest.mark.parametrize("backend", backends("brute_force", "cell_list", "vesin", *TRITON))
@FAST
@given(structure=structures(), seed=st.integers(0, 1000))
def test_moving_atoms_by_lattice_vectors_moves_only_shifts(backend, structure, seed):
    systems, cutoff = structure
    random = np.random.default_rng(seed)
    moves = [random.integers(-5, 6, atoms.shape) * np.asarray(pbc) for atoms, _, pbc in systems]
    moved = [(x + n @ cell, cell, pbc) for (x, cell, pbc), n in zip(systems, moves, strict=True)]
    search = EdgeSearch(cutoff, backend=backend)
    batch = batch_of(systems, backend)
    here = set(pairs(search.allocate(batch)))
    edges = search.update(batch_of(moved, backend).positions)
    require_laid_out(edges)
    n = np.concatenate(moves)
    there = {(i, j, tuple(int(s) for s in shift + n[j] - n[i])) for i, j, shift in pairs(edges)}
    vectors = edges.vectors(*(getattr(batch, name) for name in ("positions", "cell", "system_index")))
    assert vectors.isfinite().all()
    if here != there:  # only pairs within rounding of the cutoff
        total = np.concatenate([x for x, _, _ in systems])
        index = batch.system_index.tolist()
        for i, j, shift in here ^ there:
            vector = total[j] - total[i] + np.array(shift) @ systems[index[i]][1]
            assert abs(np.linalg.norm(vector) - cutoff) < 1e-9


@pytest.mark.parametrize("backend", backends("brute_force", "cell_list", "vesin", *TRITON))
@pytest.mark.parametrize("seed", range(3))
def test_ase_finds_the_same_neighbours(backend, seed):
    from ase.neighborlist import primitive_neighbor_list

    random = np.random.default_rng(seed)
    cell, pbc = random.normal(0, 1, (3, 3)) + 6 * np.eye(3), random.random(3) < 0.7
    positions = random.random((60, 3)) @ cell
    i, j, shifts = primitive_neighbor_list("ijS", pbc, cell, positions, 4.1)
    edges = EdgeSearch(4.1, backend=backend).allocate(batch_of([(positions, cell, pbc)], backend))
    assert set(pairs(edges)) == {
        (a, b, tuple(s)) for a, b, s in zip(i.tolist(), j.tolist(), shifts.tolist(), strict=True)
    }
