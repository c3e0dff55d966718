"""The optional backend torch-cluster: what it finds, and what is said where it cannot serve."""

import importlib.util

import numpy as np
import pytest
import torch

from torchmdx import Batch, EdgeSearch, System
from torchmdx.neighbors.brute_force import brute_force

installed = importlib.util.find_spec("torch_cluster") is not None


def batch(*sizes: int, periodic: bool = False) -> Batch:
    rng = np.random.default_rng(len(sizes))
    lattice = {"cell": np.eye(3) * 9.0, "pbc": True} if periodic else {}
    return Batch.from_systems(
        [System.create(rng.uniform(0, 6, (n, 3)), np.ones(n, dtype=int), **lattice) for n in sizes]
    )


@pytest.mark.skipif(installed, reason="torch-cluster is installed")
def test_without_torch_cluster_the_message_says_how_to_get_it():
    with pytest.raises(ImportError, match=r"needs the package torch-cluster: pip install 'torchmdx\[cluster\]'"):
        EdgeSearch(3.0, backend="torch_cluster").allocate(batch(4))


@pytest.mark.skipif(not installed, reason="needs torch-cluster")
@pytest.mark.parametrize("sizes", [(1,), (40,), (7, 0, 23, 1)])
def test_torch_cluster_finds_what_the_reference_finds(sizes):
    given = batch(*sizes)
    wanted = brute_force(given, 3.0)
    found = EdgeSearch(3.0, backend="torch_cluster").allocate(given)
    count = int(found.num_edges)
    assert count == int(wanted.num_edges)
    torch.testing.assert_close(found.row_ptr, wanted.row_ptr)
    torch.testing.assert_close(found.source[:count], wanted.source)
    torch.testing.assert_close(found.target[:count], wanted.target)


@pytest.mark.skipif(not installed, reason="needs torch-cluster")
def test_torch_cluster_refuses_periodic_batches():
    with pytest.raises(ValueError, match="has no periodic images, got a batch with periodic directions"):
        EdgeSearch(3.0, backend="torch_cluster").allocate(batch(4, periodic=True))
