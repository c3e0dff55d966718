"""The names of precisions, those of earlier versions among them, at the doors and in what was saved."""

import copy
import pickle
import re

import pytest

from torchmdx import Calculator, CapturedStep, System
from torchmdx.checkpoints.prepare import dtype_named
from torchmdx.commands import cli
from torchmdx.lammps.settings import Settings
from torchmdx.runtime.precisions import REMOVED, saved_precision

GONE = "must be one of float32, float64, got '{}', which was removed: it lost accuracy and hardly saved time"


def pattern(argument: str, name: str) -> str:
    return re.escape(f"{argument} {GONE.format(name)}")


@pytest.mark.parametrize("name", REMOVED)
def test_doors_say_that_a_precision_was_removed(potential, ethanol, name):
    with pytest.raises(ValueError, match=pattern("dtype", name)):
        Calculator(potential, dtype=name, device="cpu")
    with pytest.raises(ValueError, match=pattern("precision", name)):
        CapturedStep(potential, System.from_ase(ethanol), precision=name)
    with pytest.raises(ValueError, match=pattern("precision", name)):
        Settings.parse(["organic-1", "precision", name])


@pytest.mark.parametrize("command", [["md", "--precision"], ["relax", "--dtype"], ["bench", "--dtype"]], ids=str)
def test_commands_say_so_too(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command[0], "ethanol.xyz", command[1], "tf32"])
    assert GONE.format("tf32") in capsys.readouterr().err


def test_names_that_never_were_precisions_have_no_history():
    with pytest.raises(ValueError, match=r"dtype must be one of float32, float64, got 'float16'$"):
        dtype_named("float16")


@pytest.mark.filterwarnings("error")
def test_saved_precisions_that_are_left_are_not_mentioned():
    assert [saved_precision(name) for name in ("float32", "float64")] == ["float32", "float64"]


def test_a_pickled_calculator_goes_on_in_float32(potential, ethanol):
    calculator = Calculator(potential, device="cpu")
    calculator.parameters["dtype"] = "half"
    with pytest.warns(UserWarning, match="precision 'half' was removed.* is evaluated in float32") as warned:
        again = pickle.loads(pickle.dumps(calculator))
    assert len(warned) == 1
    ethanol.calc = again
    assert again.dtype == "float32"
    assert ethanol.get_forces().shape == (9, 3)


def test_a_copied_step_goes_on_in_float32(potential, ethanol):
    step = CapturedStep(copy.deepcopy(potential).float(), System.from_ase(ethanol))
    step.precision = "tf32"
    with pytest.warns(UserWarning, match="precision 'tf32' was removed") as warned:
        again = copy.deepcopy(step)
    assert (again.precision, len(warned)) == ("float32", 1)
