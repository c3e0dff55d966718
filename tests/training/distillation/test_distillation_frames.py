"""Trajectories of a distillation: which there are, how long they are, what is kept of them."""

import numpy as np
import pytest
import torch
from ase.build import molecule

import torchmdx
from torchmdx import System
from torchmdx.training.distillation import frames
from torchmdx.training.distillation.settings import SAMPLING, DistillSettings

WATER = System.from_ase(molecule("H2O"))


def chains(counts):
    """Structures of these compositions, (carbons, hydrogens), whose positions do not matter here."""
    return [
        System.create(np.random.default_rng(k).random((c + h, 3)) * 9, [6] * c + [1] * h)
        for k, (c, h) in enumerate(counts)
    ]


def test_few_structures_hold_out_trajectories_of_each():
    found = frames.trajectories([WATER, *chains([(1, 4)])], DistillSettings(temperature=400.0))
    for structure in (0, 1):
        own = [one for one in found if one.structure == structure]
        assert [one.part for one in own] == ["train"] * 4 + ["validation", "test"]
        temperatures = [one.temperature for one in own]
        assert temperatures[:4] == pytest.approx(np.geomspace(200, 1000, 4))
        assert temperatures[4:] == [400.0, 400.0]
    assert len({one.seed for one in found}) == len(found)
    assert found == frames.trajectories([WATER, *chains([(1, 4)])], DistillSettings(temperature=400.0))
    assert found != frames.trajectories([WATER, *chains([(1, 4)])], DistillSettings(temperature=400.0, seed=1))


def test_many_structures_hold_out_whole_compositions():
    systems = chains([(c, h) for c in range(1, 6) for h in range(5) for _ in range(2)])
    found = frames.trajectories(systems, DistillSettings())
    assert sorted(one.structure for one in found) == list(range(50)), "a trajectory of each"
    parts: dict = {}
    for one in found:
        key = tuple(systems[one.structure].atomic_numbers.tolist())
        parts.setdefault(key, set()).add(one.part)
    assert all(len(names) == 1 for names in parts.values()), "conformers are held out together"
    assert sorted(name for names in parts.values() for name in names) == ["test"] * 2 + ["train"] * 22 + ["validation"]
    temperatures = [one.temperature for one in found]
    assert min(temperatures) == pytest.approx(150.0)
    assert max(temperatures) == pytest.approx(750.0)


def test_cells_of_training_are_strained_and_molecules_are_not():
    cell = System.create(WATER.positions, WATER.atomic_numbers, 8.0 * torch.eye(3), True)
    found = frames.trajectories([WATER, cell], DistillSettings())
    assert {one.strain for one in found if one.structure == 0} == {1.0}
    assert {one.strain for one in found if one.structure == 1 and one.part == "train"} == {1.0, 0.985, 1.015}
    assert {one.strain for one in found if one.structure == 1 and one.part != "train"} == {1.0}
    strained = frames._strained(cell, 1.015)
    assert float(strained.cell[0, 0]) == pytest.approx(8.12)
    assert strained.positions.numpy() == pytest.approx(1.015 * cell.positions.numpy())


def test_batches_are_alike_in_periodicity_and_small_enough():
    cell = System.create(WATER.positions, WATER.atomic_numbers, 8.0 * torch.eye(3), True)
    planned = [frames.ShortRun(k % 2, 300.0, "train", k) for k in range(10)]
    found = frames.batches([WATER, cell], planned, most_atoms=7)
    assert [len(batch) for batch in found] == [2, 2, 1, 2, 2, 1]
    assert all(len({one.structure for one in batch}) == 1 for batch in found)
    assert [len(batch) for batch in frames.batches([WATER, cell], planned[:2], most_atoms=1)] == [1, 1]


@pytest.mark.parametrize(
    ("seconds_per_step", "expected"),
    [
        (1e-6, (200, 40, 2000)),  # as many as are useful
        (0.075 / 10, (200, 40, 245)),  # what the time allows
        (0.075 * 8, (41, 21, 4)),  # shorter, to have four
        (75.0, (0, 5, 2)),  # at least two
    ],
)
def test_the_number_of_frames_follows_from_the_time_of_a_step(seconds_per_step, expected):
    planned = [frames.ShortRun(0, 300.0, "train", k) for k in range(10)]
    found = frames.schedule(DistillSettings(minutes=5.0), seconds_per_step, planned, num_atoms=30)
    assert (found.equilibration, found.spacing, found.frames) == expected
    if expected[2] > 2 and seconds_per_step > 1e-3:
        assert found.num_steps * seconds_per_step <= 300 * SAMPLING
    given = frames.schedule(DistillSettings(frames=95), seconds_per_step, planned, num_atoms=30)
    assert (given.equilibration, given.spacing, given.frames) == (200, 40, 10)


def test_an_interrupted_trajectory_goes_on_to_the_same_frames(organic, tmp_path):
    planned = [frames.ShortRun(0, t, part, 7 + k) for k, (t, part) in enumerate([(300.0, "train"), (500.0, "test")])]
    plan = frames.FramePlan(equilibration=4, spacing=3, frames=3)
    counts: list = []

    def run(path, stop_after):
        left = [stop_after]

        def interrupted():
            left[0] -= 1
            return left[0] < 0

        return frames.sample(frames.dynamics_of(organic, [WATER], planned, 0.5), plan, path, interrupted, counts.append)

    assert run(tmp_path / "whole.npz", 10**6)
    assert counts == [1, 2, 3]
    assert not run(tmp_path / "parts.npz", 2)
    assert not frames.is_complete(tmp_path / "parts.npz")
    assert not run(tmp_path / "parts.npz", 8)
    assert run(tmp_path / "parts.npz", 10**6)
    assert frames.is_complete(tmp_path / "parts.npz")
    assert not (tmp_path / "parts.restart.npz").exists()
    whole, parts = frames._kept(tmp_path / "whole.npz"), frames._kept(tmp_path / "parts.npz")
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    # Labels are the potential's own.
    last = System.create(whole["positions"][2][3:], WATER.atomic_numbers)
    expected = torchmdx.evaluate(torchmdx.load("organic-1"), last)
    assert whole["forces"][2][3:] == pytest.approx(expected.forces.numpy(), abs=2e-4)
    assert whole["energy"][2][1] == pytest.approx(float(expected.energy), abs=1e-3)


def test_the_store_has_charges_parts_and_no_frames_with_huge_forces(tmp_path):
    charged = System.create(WATER.positions, WATER.atomic_numbers, charge=-1.0)
    planned = [frames.ShortRun(0, 300.0, part, 0) for part in ("train", "validation", "test")]
    forces = np.ones((2, 9, 3), np.float32)
    forces[1, 4] = 41.0  # of the second trajectory in its last frame
    np.savez(
        tmp_path / "a.npz",
        complete=True,
        positions=np.tile(WATER.positions.numpy(), (2, 3, 1)),
        forces=forces,
        energy=np.arange(6.0).reshape(2, 3),
        cell=np.zeros((2, 3, 3, 3)),
    )
    runs = [(tmp_path / "a.npz", planned)]
    store, parts, left_out = frames.write_store(tmp_path, [charged], ["hydroxide"], runs)
    assert left_out == 1
    assert {name: part.tolist() for name, part in parts.items()} == {
        "train": [0, 1],
        "validation": [2],
        "test": [3, 4],
    }
    assert store.gather([3]).charge.tolist() == [-1.0]
    assert store.gather([3]).energy.tolist() == [2.0]
    assert store.origin(2) == ("hydroxide at 300 K, trajectory 2", 0)
    forces[:, 3:6] = 50.0
    np.savez(tmp_path / "a.npz", **{**np.load(tmp_path / "a.npz"), "forces": forces})
    with pytest.raises(ValueError, match=r"got none for validation; 2 had forces above 40 eV/Å"):
        frames.write_store(tmp_path, [charged], ["hydroxide"], runs)


def test_a_trajectory_that_fails_keeps_what_is_before(organic, tmp_path):
    planned = [frames.ShortRun(0, 300.0, "train", 0)]
    dynamics = frames.dynamics_of(organic, [WATER], planned, 0.5)
    dynamics.run(2)
    broken = dynamics.snapshot()
    broken.velocities[:] = np.inf
    dynamics.loop.set_velocities(broken.velocities)
    with pytest.warns(UserWarning, match=r"trajectories at up to 300 K ended after 0 of 2 frames"):
        assert frames.sample(dynamics, frames.FramePlan(3, 2, 2), tmp_path / "a.npz", lambda: False, print)
    assert frames.is_complete(tmp_path / "a.npz")


def test_an_interruption_before_the_first_state_can_be_continued(organic, tmp_path, monkeypatch):
    planned = [frames.ShortRun(0, 300.0, "train", 0)]
    dynamics = frames.dynamics_of(organic, [WATER], planned, 0.5)
    monkeypatch.setattr(dynamics, "snapshots", lambda *_, **__: iter(()))
    plan = frames.FramePlan(3, 2, 2)
    assert not frames.sample(dynamics, plan, tmp_path / "a.npz", lambda: True, print)
    assert (tmp_path / "a.restart.npz").exists()
    again = frames.dynamics_of(organic, [WATER], planned, 0.5)
    assert frames.sample(again, plan, tmp_path / "a.npz", lambda: False, lambda count: None)
