"""The search of small systems on a GPU: images of atoms side by side or in turn."""

import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from interpreter import DEVICE, needs_kernels

pytest.importorskip("triton")

from torchmdx import Batch, System
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import empty_edges
from torchmdx.neighbors.grid import choose_grid
from torchmdx.neighbors.single_pass import OnePassBruteForce, OnePassCellList, few_with_images

CUTOFF = 5.0
CRYSTALS = {
    "iron": lambda: bulk("Fe"),
    "salt": lambda: bulk("NaCl", "rocksalt", 5.64, cubic=True),
    "slab": lambda: fcc111("Al", (1, 1, 3), vacuum=8.0),
    "triclinic": lambda: Atoms(
        "SiO2", [[0, 0, 0], [1.6, 0.2, 0], [0, 1.5, 0.9]], cell=[[4, 0, 0], [1, 5, 0], [2, 1, 3.5]], pbc=True
    ),
}


def batch_of(*atoms):
    return Batch.from_systems([System.from_ase(a, dtype=torch.float32, device=DEVICE) for a in atoms])


@pytest.mark.parametrize(
    ("atoms", "wanted"),
    [
        ([bulk("Fe")], True),
        ([molecule("CH4"), bulk("Fe")], True),
        ([molecule("CH4")], False),
        ([bulk("Si", cubic=True) * (2, 2, 2)], False),  # a cell of 10.86 Å
        ([bulk("Fe", cubic=True) * (1, 1, 64)], True),
        ([bulk("Fe", cubic=True) * (1, 1, 65)], False),  # 130 atoms
        ([bulk("Fe")] * 1025, False),
    ],
)
def test_images_are_side_by_side_for_few_atoms_that_have_several(atoms, wanted):
    batch = Batch.from_systems([System.from_ase(a) for a in atoms])
    assert few_with_images(batch, CUTOFF, max(map(len, atoms))) == wanted


@needs_kernels
@pytest.mark.parametrize("name", CRYSTALS)
def test_both_ways_find_the_edges_of_the_reference(name):
    atoms = CRYSTALS[name]()
    atoms.rattle(0.05, seed=1)
    batch = batch_of(atoms, molecule("CH4"))
    exact = brute_force(batch, CUTOFF)
    for sizes, images in ((None, True), ((2, 32, 1), False)):
        edges = empty_edges(batch, exact.capacity + 3)
        search = OnePassBruteForce(batch, CUTOFF, 0.0, edges, sizes)
        search.sizes["IMAGES"] = images
        search.update(batch.positions, batch.cell)
        count = int(edges.num_edges)
        assert count == int(exact.num_edges)
        assert torch.equal(edges.row_ptr, exact.row_ptr)
        assert listed(edges, count) == listed(exact, count)


def water(length, dtype=torch.float32):
    """Oxygen atoms in a cube, as dense as atoms of water are."""
    number = round(0.1 * length**3)
    places = length * torch.rand(number, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    system = System.create(places.numpy(), [8] * number, length * torch.eye(3).numpy(), True, dtype=dtype)
    return Batch.from_systems([system])


@pytest.mark.parametrize(
    ("length", "bins", "candidates"),
    [(50.0, 3, 1.0), (28.5, 3, 4.63), (33.0, 4, 1.96), (14.2, 1, 27.0), (60.0, 4, 0.422)],
)
def test_bins_of_a_cell_of_a_few_cutoffs(length, bins, candidates):
    """A cell of two cutoffs of 14 Å had one bin, and its search few programs that each passed over 27 images."""
    batch = water(length)
    grid = choose_grid(batch, 14.0)
    assert grid.grids[0, :3].tolist() == [bins] * 3
    assert grid.candidates == pytest.approx(candidates * batch.num_atoms, rel=0.01)


@pytest.mark.nightly
@needs_kernels
def test_the_search_of_a_cell_of_two_cutoffs_keeps_all_hits():
    batch = water(9.0).to(DEVICE)
    exact = brute_force(batch, 4.45)
    edges = empty_edges(batch, exact.capacity + 3)
    search = OnePassCellList(batch, 4.45, 0.0, edges)
    search.update(batch.positions, batch.cell)
    count = int(edges.num_edges)
    assert len(search.groups) == 27
    assert listed(edges, count) == listed(exact, int(exact.num_edges))
    assert int(search.lengths.max()) <= 32 * search.words  # else distances are computed again


def listed(edges, count):
    rows = torch.cat([edges.target[:count, None], edges.source[:count, None], edges.shifts[:count]], 1)
    return sorted(map(tuple, rows.tolist()))
