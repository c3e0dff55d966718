"""Spare slots in the neighbour lists of training steps, for other batches of the same shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchmdx.neighbors.search import EdgeSearch
from torchmdx.training.labelled import LabelledBatch

# Spare slots for other batches with more edges: HEAD_ROOM as a fraction of those needed, plus LEAST_ROOM. Sums over
# many systems vary less: with at least SYSTEMS_TO_TELL systems, DEVIATIONS standard deviations of the sum suffice, but
# no less than LEAST_SHARE.
HEAD_ROOM, LEAST_ROOM = 0.06, 64
DEVIATIONS, SYSTEMS_TO_TELL, LEAST_SHARE = 5.0, 16, 0.005


def room(needed: int, of_systems: NDArray[np.int64] | None) -> int:
    """Spare slots for batches similar to one that needs `needed`, of which of_systems [S] per system."""
    most = int(HEAD_ROOM * needed)
    if of_systems is None or len(of_systems) < SYSTEMS_TO_TELL:
        return most
    margin = DEVIATIONS * float(of_systems.std()) * len(of_systems) ** 0.5
    return min(most, int(max(margin, LEAST_SHARE * needed)))


def capacity_of(search: EdgeSearch, labelled: LabelledBatch) -> int:
    """Capacity of a list for the batch and similar ones. Reads the device."""
    ends = np.cumsum(np.frombuffer(labelled.layout[0], np.int64))
    starts = search.edges.row_ptr.cpu().numpy()[np.concatenate([[0], ends])].astype(np.int64)
    return int(search.edges.num_edges) + room(int(search.edges.num_edges), np.diff(starts)) + LEAST_ROOM
