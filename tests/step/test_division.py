"""Division: bricks are balanced, and their ghosts are those of an independent search over all images."""

import itertools

import numpy as np
import pytest

from torchmdx.step.division import choose_grid, divide, grids

REACH, SKIN, CUTOFF = 4.0, 1.0, 2.0


def box(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    cell = np.diag([9.0, 8.0, 11.0]) + np.tril(rng.uniform(-3, 3, (3, 3)), -1)
    return rng.uniform(-1, 2, (count, 3)) @ cell, cell


def divided(seed, grid, pbc, **options):
    positions, cell = box(seed)
    settings = {**dict(reach=REACH, skin=SKIN, cutoff=CUTOFF), **options}
    return positions, cell, divide(positions, cell, np.array(pbc), grid, **settings)


@pytest.mark.parametrize("pbc", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (1, 3, 2), (2, 2, 2)])
def test_every_atom_has_one_owner_and_domains_are_balanced(grid, pbc):
    positions, _, division = divided(0, grid, pbc)
    owned = [share.atoms[: share.num_owned] for share in division.shares]
    assert len(owned) == np.prod(grid)
    assert sorted(np.concatenate(owned)) == list(range(len(positions)))
    assert np.ptp([len(atoms) for atoms in owned]) <= 2
    for share in division.shares:
        assert (np.diff(share.hops) >= 0).all()
        assert (share.hops[: share.num_owned] == 0).all()
        assert (share.hops[share.num_owned :] >= 1).all()
        assert not share.shifts[:, ~(np.array(pbc) & (np.array(grid) > 1))].any()


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, False)])
@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 3), (2, 2, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_no_atom_within_reach_is_missing(seed, grid, pbc):
    """All copies along cut directions that are within reach + skin of an owned atom; hops are lower bounds."""
    positions, cell, division = divided(seed, grid, pbc)
    along = [range(-3, 4) if periodic and parts > 1 else range(1) for periodic, parts in zip(pbc, grid, strict=True)]
    images = np.array(list(itertools.product(*along)), dtype=float)
    for share in division.shares:
        copies = positions[share.atoms] + share.shifts @ cell
        mine = copies[: share.num_owned]
        everything = (positions[:, None] + images @ cell).reshape(-1, 3)
        # The owned atoms may lie in other periods than those that were given: search around where they are.
        apart = np.linalg.norm(everything[:, None] - mine, axis=-1).min(1)
        wanted = {tuple(np.round(place, 6) + 0.0) for place in everything[apart <= REACH + SKIN]}
        assert wanted <= {tuple(np.round(place, 6) + 0.0) for place in copies}
        assert len({tuple(np.round(place, 6) + 0.0) for place in copies}) == len(copies)
        distance = np.linalg.norm(copies[:, None] - mine, axis=-1).min(1)
        ghosts = share.hops >= 1
        assert ((share.hops[ghosts] - 1) * CUTOFF < distance[ghosts] + 1e-9).all()


def test_shares_hold_until_atoms_have_moved_by_half_of_the_skin():
    positions, cell, division = divided(0, (2, 1, 1), (True, True, True))
    moved = positions.copy()
    moved[7] += [0.0, 0.3, 0.39]
    assert division.holds(moved, cell)
    moved[7] += [0.0, 0.0, 0.02]
    assert not division.holds(moved, cell)
    assert division.holds(positions * 1.1, cell * 1.1)
    assert division.holds(positions * 0.81, cell * 0.81)  # 0.19 of 5 Å
    assert not division.holds(positions * 0.79, cell * 0.79)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    assert division.holds(positions @ turn, cell @ turn)
    assert not division.holds(positions * np.nan, cell)


def test_grids_with_the_least_work():
    everywhere, rng = np.ones(3, dtype=bool), np.random.default_rng(0)
    places = rng.random((50, 3))
    long, cube = np.diag([400.0, 50.0, 50.0]), np.eye(3) * 400
    assert choose_grid(places @ long, long, everywhere, 4, 10.0) == (4, 1, 1)
    # A direction that is not cut has no ghosts: 1 x 1 x 4 is better than 1 x 2 x 2.
    assert sorted(choose_grid(places @ cube, cube, everywhere, 4, 10.0)) == [1, 1, 4]
    assert sorted(choose_grid(places @ cube, cube, everywhere, 27, 10.0)) == [3, 3, 3]
    assert choose_grid(places @ cube, cube, everywhere, 1, 10.0) == (1, 1, 1)
    # A half with 10 Å of ghosts on both sides is 3/4 of the work, which is not worth it; a quarter is half of it.
    assert choose_grid(places * 40, np.eye(3) * 40, everywhere, 2, 10.0) == (1, 1, 1)
    assert sorted(choose_grid(places * 42, np.eye(3) * 42, everywhere, 2, 10.0)) == [1, 1, 2]
    assert sorted(choose_grid(places * 40, np.eye(3) * 40, everywhere, 4, 10.0)) == [1, 1, 4]
    small = np.eye(3) * 12
    assert choose_grid(places @ small, small, everywhere, 4, 10.0) == (1, 1, 1)
    # Without periodic directions the extent of the atoms counts, not that of a cell.
    assert choose_grid(places @ long, np.eye(3), ~everywhere, 4, 10.0) == (4, 1, 1)
    assert choose_grid(np.zeros((0, 3)), np.eye(3), ~everywhere, 4, 10.0) == (1, 1, 1)
    assert len(list(grids(12))) == 18
