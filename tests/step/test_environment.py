"""The environment of an atom: copies around it, sorted by hops, with their edges."""

import numpy as np
import pytest
import torch
from ase.build import bulk

from torchmdx import Batch, System
from torchmdx.step import environment
from torchmdx.step.environment import NotAffordable, around


@pytest.fixture
def carbon() -> Batch:
    atoms = bulk("C") * (2, 1, 3)
    atoms.rattle(0.05, seed=3)
    atoms.pbc = (True, True, False)
    return Batch.of([System.from_ase(bulk("Si")), System.from_ase(atoms)])


def copies_within(batch, atom, distance):
    """All copies around an atom of the second system: {(atom, rounded vector): vector}, by a loop over images."""
    positions, cell = batch.positions.numpy(), batch.cell[1].numpy()
    found = {}
    for a, b in np.ndindex(41, 41):
        for other in range(2, batch.num_atoms):
            vector = positions[other] - positions[atom] + (a - 20) * cell[0] + (b - 20) * cell[1]
            if np.linalg.norm(vector) <= distance:
                found[other, tuple(np.round(vector, 6) + 0.0)] = vector
    return found


def test_copies_are_all_that_are_near(carbon):
    near = around(carbon, 4, 6.0)
    wanted = copies_within(carbon, 4, 6.0 + environment.DRAWN_WITHIN)
    found = {(int(a), tuple(np.round(p.numpy(), 6) + 0.0)) for a, p in zip(near.atoms, near.positions, strict=True)}
    assert found == set(wanted)
    assert len(near.atoms) == len(wanted)
    assert int(near.atoms[0]) == 4
    assert not near.positions[0].any()


def test_atoms_are_sorted_by_hops_and_have_their_edges(carbon):
    """Against a search by breadth, with loops."""
    cutoff, hops = 1.7, 4
    found = around(carbon, 4, hops * cutoff).environment(cutoff, hops)
    drawn = found.within[0]
    vectors = list(copies_within(carbon, 4, hops * cutoff + 3.0).values())
    matrix = np.linalg.norm(np.array(vectors)[:, None] - np.array(vectors)[None], axis=-1) < cutoff
    nearest = np.argsort(np.linalg.norm(vectors, axis=1), kind="stable")[:drawn]
    reached, sizes = set(nearest.tolist()), [drawn]
    for _ in range(hops):
        reached |= {int(k) for atom in reached for k in np.flatnonzero(matrix[atom])}
        sizes.append(len(reached))
    assert found.within == sizes
    assert len(found.atoms) == sizes[-1] > carbon.num_atoms
    counts = (found.edges.row_ptr[1:] - found.edges.row_ptr[:-1]).tolist()
    apart = torch.cdist(found.positions, found.positions) < cutoff
    complete = (apart.sum(1) - 1).tolist()
    assert counts[: sizes[-2]] == complete[: sizes[-2]]
    assert not any(counts[sizes[-2] :])


def test_what_is_too_large_is_not_evaluated(carbon, monkeypatch):
    monkeypatch.setattr(environment, "MOST_AROUND", 20)
    with pytest.raises(NotAffordable, match=r"\d+ atoms within 9 Å, is more than the exact model is given \(20\)"):
        around(carbon, 4, 6.0)
