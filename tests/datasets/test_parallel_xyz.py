"""Files in parts: the same frames, errors and remarks as in one piece."""

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.datasets import conversion as module
from torchmdx.datasets import parallel_xyz
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.parallel_xyz import parts_of
from torchmdx.datasets.store import Store

pytestmark = pytest.mark.usefixtures("quick_workers")


def written(path, count, seed=0, tail=""):
    generator, frames = np.random.default_rng(seed), []
    for k in range(count):
        size = int(generator.integers(2, 6))
        atoms = Atoms(generator.choice([1, 8], size), 3 * generator.random((size, 3)) + 3 * np.arange(size)[:, None])
        atoms.calc = SinglePointCalculator(atoms, energy=float(k), forces=generator.normal(size=(size, 3)))
        frames.append(atoms)
    ase.io.write(path, frames, format="extxyz")
    with path.open("a") as file:
        file.write(tail)
    return path


def test_parts_hold_whole_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_xyz, "FRAMES", 4)
    path = written(tmp_path / "a.xyz", 11)
    parts = list(parts_of(path))
    assert [first for _, _, first in parts] == [0, 4, 8]
    assert parts[-1][1] is None
    data = path.read_bytes()
    pieces = [data[start:end] for start, end, _ in parts]
    assert b"".join(pieces) == data
    for number, piece in enumerate(pieces):
        (tmp_path / "p.xyz").write_bytes(piece)
        assert len(ase.io.read(tmp_path / "p.xyz", ":")) == (4, 4, 3)[number]


@pytest.mark.parametrize("tail", ["3\nLattice\nH 0 0 0\n"])
def test_several_processes_read_what_one_reads(tmp_path, monkeypatch, tail):
    path = written(tmp_path / "a.xyz", 1100, tail=tail)
    monkeypatch.setattr(module, "LARGE", 0)
    reports = [convert([path], tmp_path / f"out{k}", broken="skip", processes=k, log=[].append) for k in (1, 2)]
    one, two = (Store.open(tmp_path / f"out{k}") for k in (1, 2))
    assert one.digest == two.digest
    assert [one.origin(k)[1] for k in range(len(one))] == [two.origin(k)[1] for k in range(len(two))]
    assert reports[0].broken == reports[1].broken
    assert reports[0].warnings == reports[1].warnings


@pytest.mark.nightly
def test_errors_about_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 0)
    path = written(tmp_path / "a.xyz", 5)
    with pytest.raises(ValueError, match="the energy key must be in frames of .*, got 'nope'; there is energy"):
        convert([path], tmp_path / "out", keys={"energy": "nope"}, processes=2, log=[].append)
    (tmp_path / "b.xyz").write_text("nothing\n")
    with pytest.raises(ValueError, match="b.xyz' is not an XYZ file"):
        convert([tmp_path / "b.xyz"], tmp_path / "out", processes=2, log=[].append)
