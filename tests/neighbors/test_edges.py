import pytest
import torch

from torchmdx.neighbors.edges import MOST_EDGES, PADDED_LENGTH, from_lists

# Three atoms: 0 and 1 see each other, 2 sees its own images. The example drawn in docs/conventions.md.
TARGET = torch.tensor([0, 0, 1, 2, 2, 2])
SOURCE = torch.tensor([1, 2, 0, 0, 2, 2])
SHIFTS = torch.tensor([[0, 0, 0]] * 4 + [[-1, 0, 0], [1, 0, 0]])
POSITIONS = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0]], dtype=torch.float64)
CELL = torch.diag(torch.tensor([3.0, 9, 9], dtype=torch.float64))[None]
ONE_SYSTEM = torch.zeros(3, dtype=torch.int64)


def edges(capacity):
    return from_lists(TARGET, SOURCE, SHIFTS, 3, capacity)


def test_rows_and_padding_are_laid_out_as_documented():
    got = edges(8)
    assert got.row_ptr.tolist() == [0, 2, 3, 6]
    assert got.target.tolist() == [0, 0, 1, 2, 2, 2, 2, 2]
    assert got.source.tolist() == [1, 2, 0, 0, 2, 2, 2, 2]
    assert got.shifts[:, 0].tolist() == [0, 0, 0, 0, -1, 1, 0, 0]
    assert (got.num_atoms, got.capacity, int(got.num_edges), int(got.needed)) == (3, 8, 6, 6)
    assert not got.overflow
    assert {x.dtype for x in (got.row_ptr, got.source, got.target, got.shifts, got.num_edges)} == {torch.int32}


def test_vectors_point_from_target_to_the_image_of_the_source():
    vectors = edges(8).vectors(POSITIONS, CELL, ONE_SYSTEM)
    wanted = [[1, 0, 0], [0, 2, 0], [-1, 0, 0], [0, -2, 0], [-3, 0, 0], [3, 0, 0]]
    assert vectors[:6].tolist() == wanted


def test_padding_is_far_away_and_passes_no_gradient():
    positions, cell = POSITIONS.clone().requires_grad_(), CELL.clone().requires_grad_()
    vectors = edges(8).vectors(positions, cell, ONE_SYSTEM)
    assert (vectors[6:] == PADDED_LENGTH).all()
    gradients = torch.autograd.grad(vectors[6:].square().sum(), [positions, cell])
    assert all((gradient == 0).all() for gradient in gradients)


def test_gradients_flow_to_positions_and_cell():
    positions, cell = POSITIONS.clone().requires_grad_(), CELL.clone().requires_grad_()
    vectors = edges(8).vectors(positions, cell, ONE_SYSTEM)
    to_positions, to_cell = torch.autograd.grad(vectors[:, 0][:5].sum(), [positions, cell])
    assert to_positions[:, 0].tolist() == [1 - 2 + 1, 1 - 1, 1 - 1]
    assert to_cell[0].tolist() == [[-1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_each_edge_uses_the_cell_of_its_own_system():
    cells = torch.stack([CELL[0], 2 * CELL[0]])
    vectors = edges(8).vectors(POSITIONS, cells, torch.tensor([0, 0, 1]))
    assert vectors[4:6, 0].tolist() == [-6, 6]


def test_a_list_that_does_not_fit_says_so_and_how_much_it_needs():
    got = edges(4)
    assert got.overflow
    assert (int(got.needed), int(got.num_edges), got.capacity) == (6, 4, 4)
    assert got.row_ptr.tolist() == [0, 2, 3, 4]
    assert not edges(6).overflow


def test_trimming_leaves_only_edges():
    got = edges(8).trimmed()
    assert got.capacity == 6
    assert got.filled().all()
    assert torch.equal(got.source, edges(6).source)


def test_an_empty_list_has_no_vectors():
    nothing = torch.zeros(0, dtype=torch.int64)
    empty = from_lists(nothing, nothing, torch.zeros(0, 3, dtype=torch.int64), 0, 0)
    assert empty.vectors(torch.zeros(0, 3), CELL, nothing).shape == (0, 3)


@pytest.mark.parametrize("capacity", [-1, MOST_EDGES + 1])
def test_a_capacity_that_cannot_be_addressed_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity must be from 0 to {MOST_EDGES} edges, got {capacity}"):
        edges(capacity)
