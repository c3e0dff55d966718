"""What a list of neighbours has to look like, and how it is compared with another."""

from collections import Counter

import numpy as np
import oracle
import pytest
import torch
from interpreter import DEVICE

from torchmdx import Batch, System

TRITON = ("triton_brute_force", "triton_cell_list")


def device_of(backend):
    return DEVICE if backend in TRITON else "cpu"


def backends(*names, interpreter=False):
    """Parameters: the backends of these names. Triton's need a GPU; without one, the interpreter if that is allowed."""
    kernels = pytest.mark.interpreter if interpreter and DEVICE == "cpu" else pytest.mark.gpu
    return [pytest.param(name, marks=[kernels] if name in TRITON else []) for name in names]


def batch_of(systems, backend, dtype=torch.float64):
    """A batch of (positions, cell, pbc) where the backend searches."""
    made = [
        System.create(x, [1] * len(x), cell, pbc, dtype=dtype, device=device_of(backend)) for x, cell, pbc in systems
    ]
    return Batch.from_systems(made)


def pairs(edges):
    """Edges as (target, source, shift), in their order."""
    count = int(edges.num_edges)
    columns = (edges.target[:count].tolist(), edges.source[:count].tolist(), edges.shifts[:count].tolist())
    return [(i, j, tuple(shift)) for i, j, shift in zip(*columns, strict=True)]


def require_laid_out(edges):
    """Rows, order, padding, both directions: everything that holds whatever the structure is."""
    assert not edges.overflow
    found, count, last = pairs(edges), int(edges.num_edges), edges.num_atoms - 1
    assert int(edges.needed) == count
    assert max(Counter(found).values(), default=1) == 1, "an edge stands in the list twice"
    assert {(j, i, tuple(-n for n in shift)) for i, j, shift in found} == set(found)
    targets = np.array([i for i, _, _ in found], dtype=int)
    assert (np.diff(targets) >= 0).all()
    rows = np.searchsorted(targets, np.arange(edges.num_atoms + 1))
    assert edges.row_ptr.tolist() == rows.tolist()
    assert (edges.source[count:] == last).all()
    assert (edges.target[count:] == last).all()
    assert (edges.shifts[count:] == 0).all()
    for part in (edges.row_ptr, edges.source, edges.target, edges.shifts, edges.num_edges):
        assert part.dtype == torch.int32


def require_neighbours(edges, systems, cutoff, dtype=torch.float64):
    """The list is laid out well, and is the oracle's but for pairs within rounding of the cutoff."""
    require_laid_out(edges)
    systems = [(rounded(x, dtype), rounded(cell, dtype), pbc) for x, cell, pbc in systems]
    size = max([1.0, cutoff, *(np.abs(part).max() for x, cell, _ in systems for part in (x, cell) if np.size(part))])
    margin = (3e-6 if dtype == torch.float32 else 1e-13) * size * 10
    possible = oracle.of_batch(systems, cutoff + margin)
    certain = {pair for pair, distance in possible.items() if distance < cutoff - margin}
    found = set(pairs(edges))
    assert certain <= found, f"missing: {sorted(certain - found)[:5]}"
    assert found <= set(possible), f"too many: {sorted(found - set(possible))[:5]}"


def rounded(values, dtype):
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).to(dtype).double().numpy()


def random_systems(seed, most_systems=3, most_atoms=12):
    """Cells from needle to plate in any orientation, any periodicity, atoms inside and far outside of them."""
    random = np.random.default_rng(seed)
    systems = []
    for _ in range(random.integers(1, most_systems + 1)):
        cell = np.zeros((3, 3))
        # Flatter cells have so many images that the oracle's loops take minutes.
        while abs(np.linalg.det(cell)) == 0 or (1 / np.linalg.norm(np.linalg.inv(cell), axis=0)).min() < 1:
            cell = random.normal(0, 0.4, (3, 3)) + np.diag(random.choice([1.5, 3.0, 8.0], 3))
        cell = cell @ np.linalg.qr(random.normal(size=(3, 3)))[0]
        atoms = random.normal(0, random.choice([2.0, 30.0]), (random.integers(0, most_atoms + 1), 3))
        systems.append((atoms, cell, random.random(3) < 0.6))
    return systems
