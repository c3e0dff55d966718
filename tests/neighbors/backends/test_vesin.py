"""vesin: structures that it is not asked about."""

import numpy as np
import pytest
from checks import batch_of, require_neighbours

from torchmdx.neighbors.search import EdgeSearch

pytest.importorskip("vesin")


@pytest.mark.parametrize("backend", ["vesin", "cell_list"])
def test_a_system_without_atoms_in_a_huge_box(backend):
    """The cell list leaves the batch to vesin because of the small cell."""
    small = (np.array([[0.0, 0, 0], [0.1, 0.1, 0.1]]), 0.2 * np.eye(3), (True, False, False))
    empty = (np.zeros((0, 3)), 4e6 * np.eye(3), (True, False, True))
    batch = batch_of([small, empty], backend)
    edges = EdgeSearch(4.0, backend=backend).allocate(batch)
    require_neighbours(edges, [small, empty], 4.0, batch.positions.dtype)
