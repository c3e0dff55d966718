"""Launch sizes by the number of atoms: the limits, on both sides."""

import pytest

from torchmdx.engines.plan import Workload, machine_named
from torchmdx.engines.plan.launch_sizes import PIECE, ProductBlock, Row, launch_sizes

H100 = machine_named("H100")


def sizes(kind, atoms, machine=H100, **options):
    return launch_sizes(kind, Workload(atoms=atoms, **options), machine)


@pytest.mark.parametrize(
    ("atoms", "row", "columns"),
    [
        (128, Row(8, 8, 8), 64),
        (129, Row(4, 8, 16, apart=True), 64),
        (448, Row(4, 8, 16, apart=True), 64),
        (449, None, 32),
        (2047, None, 32),
        (2048, None, 64),
        (8191, None, 64),
        (8192, None, 128),
    ],
)
def test_a_tensornet(atoms, row, columns):
    found = sizes("TensorNet", atoms)
    assert (found.row, found.product.columns) == (row, columns)


@pytest.mark.parametrize(
    ("atoms", "rows", "columns"),
    [(128, True, 32), (129, False, 32), (682, False, 32), (683, False, 64)],
)
def test_a_tensornet2(atoms, rows, columns):
    found = sizes("TensorNet2", atoms)
    assert (found.row is not None) == rows
    assert found.edge_product == (ProductBlock(128, 64, 32, 8) if columns == 64 else ProductBlock(columns=32))


def test_memory_counts_where_tensors_would_take_an_eighth_of_it():
    card = machine_named("RTX 4090")
    assert not sizes("TensorNet", 65_535, card).lean
    assert sizes("TensorNet", 65_536, card).lean
    assert sizes("TensorNet", 65_536, card).piece == PIECE
    assert [sizes("TensorNet", atoms).lean for atoms in (153_000, 154_500)] == [False, True]
    assert [sizes("TensorNet", atoms, machine_named("H200")).lean for atoms in (272_000, 273_000)] == [False, True]


@pytest.mark.parametrize("kind", ["TensorNet", "TensorNet2"])
def test_a_domain_takes_kernels_for_many_atoms(kind):
    assert sizes(kind, 9, domain=True) == sizes(kind, 449)
