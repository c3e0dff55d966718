"""What only a GPU can show: capture, replay, size."""

import numpy as np
import pytest
import torch
from checks import TRITON, batch_of, pairs

from torchmdx import Batch, System
from torchmdx.neighbors.search import EdgeSearch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def liquid(count, seed=0, dtype=torch.float32):
    length = (count / 0.1) ** (1 / 3)
    positions = np.random.default_rng(seed).random((count, 3)) * length
    return Batch.from_systems(
        [System.create(positions, [1] * count, length * np.eye(3), True, dtype=dtype, device="cuda")]
    )


def captured(search, positions, cell):
    graph = torch.cuda.CUDAGraph()
    search.update(positions, cell)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        search.update(positions, cell)
    return graph


@pytest.mark.parametrize("skin", [0.0, 0.5])
@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("count", [60, 900])
def test_a_thousand_replayed_frames_are_those_of_a_fresh_search(backend, count, skin):
    batch = liquid(count)
    search, fresh = EdgeSearch(4.0, skin=skin, backend=backend), EdgeSearch(4.0, backend=backend)
    capacity = 3 * search.allocate(batch).capacity
    edges, wanted = search.allocate(batch, capacity), fresh.allocate(batch, capacity)
    positions, cell = batch.positions.clone(), batch.cell.clone()
    graph = captured(search, positions, cell)
    before = search.num_updates()
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(1000):
        positions += 0.02 * torch.randn(positions.shape, device="cuda", generator=generator)
        cell *= 1 + 1e-4 * torch.randn(1, device="cuda", generator=generator)
        graph.replay()
        fresh.update(positions, cell)
        if skin == 0:
            same = [torch.equal(getattr(edges, n), getattr(wanted, n)) for n in ("row_ptr", "source", "shifts")]
            assert all(same)
        else:
            v = edges.vectors(positions.double(), cell.double(), batch.system_index)
            near = torch.linalg.vector_norm(v, dim=1) < 4.0
            assert abs(int(near.sum()) - int(wanted.num_edges)) <= 2  # rounding at the cutoff
    searched = search.num_updates() - before
    assert searched == 1000 if skin == 0 else 0 < searched < 500


@pytest.mark.parametrize("backend", TRITON)
def test_replays_that_overflow_grow_and_lose_nothing(backend):
    batch = liquid(500)
    search = EdgeSearch(4.0, backend=backend)
    search.allocate(batch)
    positions, cell = batch.positions.clone(), batch.cell.clone()
    graph = captured(search, positions, cell)
    positions *= 0.8
    cell *= 0.8
    graph.replay()
    assert search.edges.overflow
    search.grow()
    graph = captured(search, positions, cell)
    graph.replay()
    systems = [(positions.double().cpu().numpy(), cell[0].double().cpu().numpy(), (True,) * 3)]
    wanted = EdgeSearch(4.0, backend="brute_force").allocate(batch_of(systems, "brute_force", torch.float32))
    assert abs(int(search.edges.num_edges) - int(wanted.num_edges)) <= 4
    assert len(set(pairs(search.edges)) ^ set(pairs(wanted))) <= 4


def test_a_million_atoms_and_both_backends_agree_at_ten_thousand():
    edges = EdgeSearch(5.0).allocate(liquid(1_000_000))
    assert not edges.overflow
    assert int(edges.row_ptr[-1]) == int(edges.num_edges) == int(edges.needed)
    row = torch.arange(1_000_000, device="cuda").repeat_interleave(edges.row_ptr.diff().long())
    assert torch.equal(row.int(), edges.target[: len(row)])
    counts = [int(EdgeSearch(5.0, backend=b).allocate(liquid(10_000, dtype=torch.float64)).needed) for b in TRITON]
    assert counts[0] == counts[1]
