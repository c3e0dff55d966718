"""Calculators that work through files do not share them."""

from pathlib import Path

import numpy as np
import pytest
import toys
from ase.calculators.calculator import Calculator
from ase.calculators.mixing import SumCalculator

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.file_folders import remove_empty, use_folder
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.work import LabelWork
from torchmdx.datasets.labelling.workers import Task, Workers


class Program(Calculator):
    """An interface that calls a program by itself, as that of VASP."""

    command = "program"


class Correction(Calculator):
    """Adds something to another calculator, as DFTD3 does."""

    def __init__(self, dft, **options):
        super().__init__(**options)
        self.dft = dft


@pytest.mark.parametrize("directory", [".", "scratch"])
def test_labels_of_workers_are_not_mixed(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    made = toys.frames(12)
    work = LabelWork(
        Choice("toys:Files", {} if directory == "." else {"directory": str(tmp_path / directory)}),
        tmp_path / "out.files",
    )
    with Workers(work, 3, timeout=None, log=tmp_path / "log", stopped=lambda: False) as workers:
        tasks = [Task(number, UnlabelledStructure.from_ase(atoms)) for number, atoms in enumerate(made)]
        found = {outcome.name: outcome for outcome in workers.run(tasks) if outcome is not None}
    for number, atoms in enumerate(made):
        assert found[number].error is None
        assert found[number].value.energy == pytest.approx(toys.STIFFNESS / 2 * (atoms.positions**2).sum())
        np.testing.assert_allclose(found[number].value.forces, -toys.STIFFNESS * atoms.positions)
    parent = tmp_path / ("out.files" if directory == "." else directory)
    written = {path.relative_to(parent).as_posix() for path in parent.rglob("springs.in")}
    assert written
    assert written <= {f"{number}/springs.in" for number in range(3)}
    assert not list(tmp_path.glob("springs.*"))


def test_a_folder_of_its_own_for_each_program(tmp_path):
    first, second, third = toys.Files(), Program(), toys.Files(directory=str(tmp_path / "b"))
    use_folder(Correction(SumCalculator([first, second, Correction(third)])), tmp_path / "a" / "7")
    assert Path(first.directory) == tmp_path / "a" / "7-0"
    assert Path(second.directory) == tmp_path / "a" / "7-1"
    assert Path(third.directory) == tmp_path / "b" / "7-2"
    assert all(Path(calculator.directory).is_dir() for calculator in (first, second, third))


def test_the_folder_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calculator = toys.Files()
    use_folder(calculator, Path("a/0"))
    assert Path(calculator.directory) == (tmp_path / "a/0").resolve()


def test_calculators_in_memory_keep_their_directory(tmp_path):
    springs, outsider = toys.Springs(), object()
    use_folder(springs, tmp_path / "a" / "0")
    use_folder(outsider, tmp_path / "a" / "0")
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
