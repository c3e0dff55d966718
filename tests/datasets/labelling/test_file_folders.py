"""Calculators that work through files do not share them."""

from pathlib import Path

import numpy as np
import pytest
import toys
from ase.calculators.calculator import Calculator
from ase.calculators.mixing import SumCalculator

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.file_folders import FileFolders, remove_empty
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.work import FrameToLabel, LabelWork
from torchmdx.datasets.labelling.workers import Task, Workers


class Program(Calculator):
    """An interface that calls a program by itself, as that of VASP."""

    command = "program"


class Correction(Calculator):
    """Adds something to another calculator, as DFTD3 does."""

    def __init__(self, dft, **options):
        super().__init__(**options)
        self.dft = dft


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("directory", [".", "scratch"])
def test_labels_of_workers_are_not_mixed(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    made = toys.frames(12)
    work = LabelWork(
        Choice("toys:Files", {} if directory == "." else {"directory": str(tmp_path / directory)}),
        tmp_path / "out.files",
    )
    with Workers(work, 3, timeout=None, log=tmp_path / "log", stopped=lambda: False) as workers:
        structures = map(UnlabelledStructure.from_ase, made)
        tasks = [Task(number, FrameToLabel((2, number), structure)) for number, structure in enumerate(structures)]
        found = {outcome.name: outcome for outcome in workers.run(tasks) if outcome is not None}
    for number, atoms in enumerate(made):
        assert found[number].error is None
        assert found[number].value.energy == pytest.approx(toys.STIFFNESS / 2 * (atoms.positions**2).sum())
        np.testing.assert_allclose(found[number].value.forces, -toys.STIFFNESS * atoms.positions)
    parent = tmp_path / ("out.files" if directory == "." else directory)
    written = {path.relative_to(parent).as_posix() for path in parent.rglob("springs.in")}
    assert written == {f"2-{number}/springs.in" for number in range(12)}
    assert not list(tmp_path.glob("springs.*"))


def test_a_folder_of_its_own_for_each_program_and_frame(tmp_path):
    first, second, third = toys.Files(), Program(), toys.Files(directory=str(tmp_path / "b"))
    folders = FileFolders(Correction(SumCalculator([first, second, Correction(third)])), tmp_path / "a")
    for frame in ("0-7", "0-8"):
        folders.enter(frame)
        assert Path(first.directory) == tmp_path / "a" / f"{frame}-0"
        assert Path(second.directory) == tmp_path / "a" / f"{frame}-1"
        assert Path(third.directory) == tmp_path / "b" / f"{frame}-2"
        assert folders.used == [Path(calculator.directory) for calculator in (first, second, third)]
        assert all(place.is_dir() for place in folders.used)


def test_a_second_attempt_gets_a_new_folder_and_removes_only_that(tmp_path):
    (tmp_path / "a" / "0-7").mkdir(parents=True)
    (tmp_path / "a" / "0-7" / "springs.out").write_text("of another run")
    calculator = toys.Files()
    folders = FileFolders(calculator, tmp_path / "a")
    folders.enter("0-7")
    assert Path(calculator.directory) == tmp_path / "a" / "0-7.1"
    FileFolders(toys.Files(), tmp_path / "a").enter("0-7")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["0-7", "0-7.1", "0-7.2"]
    folders.remove()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["0-7", "0-7.2"]
    folders.remove()


def test_the_folder_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calculator = toys.Files()
    FileFolders(calculator, Path("a")).enter("0-0")
    assert Path(calculator.directory) == (tmp_path / "a/0-0").resolve()


def test_calculators_in_memory_keep_their_directory(tmp_path):
    springs, outsider = toys.Springs(), object()
    for calculator in (springs, outsider):
        FileFolders(calculator, tmp_path / "a").enter("0-0")
    assert springs.directory == "."
    assert not (tmp_path / "a").exists()


def test_empty_folders_are_removed(tmp_path):
    (tmp_path / "a" / "0" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "1").mkdir()
    (tmp_path / "a" / "1" / "out").write_text("kept")
    remove_empty(tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["1"]
    (tmp_path / "a" / "1" / "out").unlink()
    remove_empty(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove_empty(tmp_path / "a")
