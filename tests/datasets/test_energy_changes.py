"""Signs and units of forces, from energies and forces of model surfaces worked out here."""

import numpy as np
import pytest

from torchmdx.commands.cli import main
from torchmdx.datasets.distributions import statistics, text
from torchmdx.datasets.energy_changes import EnergyChanges
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

BENT = np.array([[0.0, 0.0, 0.1], [0.76, 0.1, -0.5], [-0.76, 0.0, -0.45]])


def rotation(generator):
    """A random proper rotation."""
    found, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    return found * np.sign(np.linalg.det(found))


def springs(positions, cell=None):
    """Energy and forces of anharmonic springs between all pairs, of length 1 Å; in a cell to the nearest image."""
    vectors = positions[:, None] - positions
    if cell is not None:
        vectors = vectors - np.round(vectors @ np.linalg.inv(cell)) @ cell
    first, second = np.triu_indices(len(positions), 1)
    v = vectors[first, second]
    r = np.linalg.norm(v, axis=1)
    energy = (4 * (r - 1) ** 2 + (r - 1) ** 3).sum()
    pull = -((8 * (r - 1) + 3 * (r - 1) ** 2) / r)[:, None] * v
    forces = np.zeros_like(positions)
    np.add.at(forces, first, pull)
    np.add.at(forces, second, -pull)
    return energy, forces


def trajectory(count=30, step=0.03, *, sign=1.0, factor=1.0, turned=False, cell=None, noise=0.0, seed=0):
    """Frames of a random walk of three atoms."""
    generator = np.random.default_rng(seed)
    positions, frames = BENT.copy(), []
    for _ in range(count):
        positions = positions + generator.normal(scale=step, size=positions.shape)
        energy, forces = springs(positions, cell)
        shown = positions
        if turned:
            around = rotation(generator)
            shown, forces = positions @ around + generator.normal(size=3), forces @ around
        if cell is not None:
            shown = ((positions @ np.linalg.inv(cell)) % 1.0) @ cell
        frames.append(
            Frames.single(
                shown,
                np.array([8, 1, 1]),
                energy=energy + noise * generator.normal() - 2000.0,
                forces=sign * factor * forces,
                cell=cell,
                pbc=None if cell is None else [True] * 3,
            )
        )
    return Frames.concatenate(frames)


def judged(frames, *, at_once=True):
    changes = EnergyChanges()
    for part in [frames] if at_once else [frames.take(np.array([k])) for k in range(len(frames))]:
        changes.add(part, ["a.xyz"] * len(part))
    (found,) = changes.agreements()
    return found


CELL = np.array([[3.0, 0, 0], [0.5, 3.2, 0], [0, 0.4, 3.1]])


@pytest.mark.parametrize("settings", [{}, {"turned": True}, {"cell": CELL}], ids=["molecule", "turned", "wrapped"])
def test_signs(settings):
    right, wrong = (judged(trajectory(sign=sign, **settings)) for sign in (1.0, -1.0))
    assert (right.verdict, right.num_pairs, right.warning()) == ("agree", 29, None)
    assert right.ratio == pytest.approx(1.0, abs=0.03)
    assert (wrong.verdict, wrong.against) == ("against", 1.0)
    assert wrong.ratio == pytest.approx(-1.0, abs=0.03)
    assert "the forces of a.xyz contradict the energies" in wrong.warning()


@pytest.mark.parametrize(
    ("factor", "unit"),
    [
        (1 / 51.422, "in hartree/bohr but read as eV/Å"),
        (23.0605, "in kcal/mol/Å but read as eV/Å"),
        (3.7, None),
    ],
)
def test_units_that_do_not_fit(factor, unit):
    found = judged(trajectory(factor=factor))
    assert found.verdict == "scaled"
    assert found.ratio == pytest.approx(1 / factor, rel=0.03)
    assert (unit or "check the units") in found.warning()
    assert ("as if" in found.warning()) == (unit is not None)


def test_frames_one_by_one_make_the_same_pairs():
    frames = trajectory(sign=-1.0)
    assert judged(frames, at_once=False) == judged(frames)


def test_what_cannot_be_compared():
    far, few = judged(trajectory(step=20.0)), judged(trajectory(6))
    assert (far.num_pairs, far.ratio, far.verdict) == (0, None, "unclear")
    assert few.verdict == "unclear"
    assert judged(trajectory(noise=50.0)).verdict == "unclear"
    frames = trajectory()
    frames.atomic_numbers[::6] = 7  # every other frame has another element
    assert judged(frames).num_pairs == 0
    frames = trajectory()
    frames.energy[::2] = np.nan
    assert judged(frames).num_pairs == 0
    frames = trajectory(cell=CELL)
    frames.cell[:] *= np.linspace(1, 1.2, 30)[:, None, None]
    assert judged(frames).num_pairs == 0


def test_pairs_are_of_one_file_and_limited():
    frames = trajectory(sign=-1.0)
    changes = EnergyChanges(most_pairs=20)
    changes.add(frames, ["a"] * 15 + ["b"] * 15)
    assert [(one.file, one.num_pairs) for one in changes.agreements()] == [("a", 14), ("b", 6)]


def test_statistics_name_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("torchmdx.datasets.distributions.CHUNK", 7)
    with StoreWriter(tmp_path / "s") as writer:
        writer.add(trajectory(), "good.xyz", 0)
        writer.add(trajectory(sign=-1.0, seed=1), "bad.xyz", 0)
    found = statistics(Store.open(tmp_path / "s"))
    assert [(one.file, one.num_pairs, one.verdict) for one in found.agreements] == [
        ("good.xyz", 29, "agree"),
        ("bad.xyz", 29, "against"),
    ]
    assert found.json()["agreements"][1]["verdict"] == "against"
    lines = text(found)
    assert "forces agree with the energies along 29 pairs of consecutive frames in 1 of 2 files" in lines
    assert "warning: the forces of bad.xyz contradict the energies" in lines
    with StoreWriter(tmp_path / "t") as writer:
        writer.add(trajectory(step=20.0), "far.xyz", 0)
    assert "forces are not compared with energies" in text(statistics(Store.open(tmp_path / "t")))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sign": -1.0}, "bad.npz contradict the energies"),
        ({"factor": 1 / 27.2114}, "bad.npz change by 27.2 times as much as its forces predict"),
    ],
    ids=["sign", "unit"],
)
def test_convert_warns(tmp_path, capsys, settings, words):
    frames = trajectory(**settings)
    names = dict(positions="R", atomic_numbers="z", energy="E", forces="F")
    arrays = dict(R=frames.positions.reshape(-1, 3, 3), z=frames.atomic_numbers[:3], E=frames.energy)
    np.savez(tmp_path / "bad.npz", **arrays, F=frames.forces.reshape(-1, 3, 3))
    keys = [word for name, key in names.items() for word in (f"--{name.replace('_', '-')}-key", key)]
    assert main(["data", "convert", str(tmp_path / "bad.npz"), "-o", str(tmp_path / "s"), *keys]) == 0
    (warning,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: "))
    assert words in warning
