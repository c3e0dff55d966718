"""Ewald sums: lists of vectors that follow a cell."""

import math

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.models.priors import ewald
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.ewald import KeptVectors, KVectors
from torchmdx.models.priors.splitting import Splitting

CELL = np.array([[11.0, 0.5, 0.0], [-2.0, 12.0, 0.3], [1.0, 2.0, 9.0]])
SPLITTING = Splitting.of(1e-5, 6.0)


def batch_of(*cells, pbc=True, thick=4.0) -> Batch:
    x = [[0.0, 0.0, 0.0], [1.0, 2.0, thick]]
    return Batch.from_systems([System.create(x, [11, 17], cell, pbc) for cell in cells])


def charges_of(batch, value=1.0):
    return torch.tensor([[value], [-1.0]], dtype=torch.float64).repeat(batch.num_systems, 1)


def list_of(batch, **settings) -> KVectors:
    return KVectors.of(batch, SPLITTING, charges_of(batch), **settings)


def stretched(cell, *factors) -> np.ndarray:
    """The cell deformed along orthogonal directions that are not its own."""
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    return cell @ (turn @ np.diag(factors) @ turn.T)


def test_a_list_holds_one_of_each_pair_of_vectors():
    vectors = list_of(batch_of(CELL))
    dual = 2 * math.pi * np.linalg.inv(CELL).T
    most = range(-30, 31)
    every = np.stack(np.meshgrid(most, most, most, indexing="ij"), -1).reshape(-1, 3)
    wanted = every[np.linalg.norm(every @ dual, axis=1) <= SPLITTING.longest]
    half = vectors.indices[0].numpy()
    both = {tuple(row) for row in np.concatenate([half, -half, [[0, 0, 0]]])}
    assert both == {tuple(row) for row in wanted.astype(float)}
    assert len(both) == 2 * vectors.count + 1


def test_lists_of_a_batch_share_their_shape():
    small, large = 5.0 * np.eye(3), CELL
    vectors = list_of(batch_of(small, large))
    alone = [list_of(batch_of(cell)).indices[0] for cell in (small, large)]
    assert vectors.count == len(alone[1]) > len(alone[0])
    assert torch.equal(vectors.indices[0, : len(alone[0])], alone[0])
    assert not vectors.indices[0, len(alone[0]) :].any()


@pytest.mark.parametrize(
    ("factors", "fits"),
    [
        ((1, 1, 1), True),
        ((1.02, 0.98, 1), True),
        ((0.8, 0.9, 0.9), True),
        ((1.04, 1, 1), False),
        ((1, 1.1, 0.5), False),
    ],
)
def test_a_list_fits_if_it_holds_every_vector_of_the_new_cell(factors, fits):
    vectors, new = list_of(batch_of(CELL), margin=0.03), batch_of(stretched(CELL, *factors))
    needed = {tuple(row) for row in list_of(new).indices[0].tolist()}
    kept = {tuple(row) for each in (vectors.indices[0], -vectors.indices[0]) for row in each.tolist()}
    found = bool(vectors.fits(new))
    assert needed <= kept or not found
    assert fits is None or found == fits


def test_a_list_fits_other_periodic_directions_never():
    cell = np.diag([10.0, 10.0, 30.0])
    bulk, slab = batch_of(cell), batch_of(cell, pbc=(True, True, False))
    assert bool(list_of(bulk).fits(bulk))
    assert not bool(list_of(bulk).fits(slab))
    assert not bool(list_of(slab).fits(bulk))


def test_a_slab_may_thicken_a_little():
    cell, pbc = np.diag([10.0, 10.0, 0.0]), (True, True, False)
    vectors = list_of(batch_of(cell, pbc=pbc), margin=0.03)
    assert bool(vectors.fits(batch_of(cell, pbc=pbc, thick=5.0)))
    assert not bool(vectors.fits(batch_of(cell, pbc=pbc, thick=6.0)))
    assert float(vectors.lattice(vectors.cell)[0, 2, 2]) > 4.0 + SPLITTING.cutoff


def test_an_engine_keeps_its_list_until_it_does_not_fit():
    kept, overflow = KeptVectors(), torch.zeros((), dtype=torch.bool)

    def served(*factors):
        batch = batch_of(stretched(CELL, *factors))
        return kept.serve(batch, SPLITTING, charges_of(batch), overflow)

    first = served(1, 1, 1)
    assert served(1.01, 1, 0.99) is first
    assert served(1.1, 1, 1) is not first
    assert kept.latest is not first
    assert kept.lists == [kept.latest]  # no graph of a CPU needs the first
    assert not overflow


def test_a_slab_that_is_charged_later_is_refused(monkeypatch):
    kept, overflow = KeptVectors(), torch.zeros((), dtype=torch.bool)
    slab = batch_of(CELL, pbc=(True, True, False))
    first = kept.serve(slab, SPLITTING, charges_of(slab), overflow)
    assert kept.serve(slab, SPLITTING, charges_of(slab, math.nan), overflow) is first
    with pytest.raises(ValueError, match=r"of a slab needs charges that add up to 0 e, got 0.5 \(system 0\)"):
        kept.serve(slab, SPLITTING, charges_of(slab, 1.5), overflow)
    monkeypatch.setattr(ewald, "shapes_are_fixed", lambda positions: True)
    kept.serve(slab, SPLITTING, charges_of(slab), overflow)
    assert not overflow
    kept.serve(slab, SPLITTING, charges_of(slab, 1.5), overflow)
    assert overflow


def test_a_capture_takes_the_list_that_is_there_and_sets_a_flag(monkeypatch):
    kept, overflow = KeptVectors(), torch.zeros((), dtype=torch.bool)
    same, other = batch_of(CELL), batch_of(1.2 * CELL)
    monkeypatch.setattr(ewald, "shapes_are_fixed", lambda positions: True)
    with pytest.raises(RuntimeError, match="must have run before it is captured"):
        kept.serve(same, SPLITTING, charges_of(same), overflow)
    monkeypatch.undo()
    first = kept.serve(same, SPLITTING, charges_of(same), overflow)
    monkeypatch.setattr(ewald, "shapes_are_fixed", lambda positions: True)
    assert kept.serve(same, SPLITTING, charges_of(same), overflow) is first
    assert not overflow
    assert kept.serve(other, SPLITTING, charges_of(other), overflow) is first
    assert overflow


def test_what_is_not_a_number_is_found_elsewhere():
    batch = batch_of(CELL)
    vectors = list_of(batch)
    batch.positions[0, 0] = torch.nan
    assert bool(vectors.fits(batch))
    assert list_of(batch).count == vectors.count


def test_far_too_many_vectors_are_refused():
    batch = batch_of(3000.0 * np.eye(3))
    with pytest.raises(
        ValueError, match=r"a box of at most 20,000,000 vectors, got [\d,]{10,} for .*: a longer cutoff"
    ):
        list_of(batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            dict(periodic="p3m"),
            "periodic of the prior coulomb must be one of reaction_field, ewald, pme, auto, got 'p3m'",
        ),
        (dict(accuracy=0.0), "accuracy of the prior coulomb must be from 1e-13 to 0.01, got 0.0"),
        (dict(accuracy=True), "accuracy of the prior coulomb must be from 1e-13 to 0.01, got True"),
        (
            dict(periodic="ewald", cut_in_vacuum=True),
            "cut_in_vacuum .* needs periodic 'reaction_field', got .* 'ewald'",
        ),
        (dict(periodic="auto", cutoff=4.0), "cutoff .* must be at least the damping's 4.6 Å in an Ewald sum, got 4.0"),
        (dict(periodic="ewald", cutoff=3.0, switch=(1, 5)), "must be at least the switch's 5 Å"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        CoulombConfig(**settings)
