import numpy as np
import pytest
import torch

import torchmdx
from torchmdx.ase.parameters import CHANGEABLE, FIXED, require_changeable


def test_every_parameter_that_can_be_changed_is_accepted():
    require_changeable(CHANGEABLE)


@pytest.mark.parametrize("name", FIXED)
def test_others_need_a_new_calculator(name):
    with pytest.raises(ValueError, match=f"^{name} can't be changed by set, which takes charge, mode, .*: make a new"):
        require_changeable(["charge", name])


def test_a_name_that_is_nearly_right_is_suggested():
    with pytest.raises(TypeError, match="got 'max_spread'; did you mean 'max_force_spread'"):
        require_changeable(["max_spread"])


@pytest.mark.parametrize("dtype", [torch.float64, np.float64, np.dtype("float64"), "double", "float64"])
def test_dtypes_of_torch_and_numpy(dtype):
    assert torchmdx.Calculator(dtype=dtype).dtype == "float64"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("default_dtype", "dtype"), ("model_paths", "potential"), ("total_charge", "charge"), ("devicess", "devices")],
)
def test_arguments_of_other_calculators_get_ours_named(given, meant):
    with pytest.raises(TypeError, match=f"argument must be one of .*, got '{given}'; did you mean {meant}=\\?"):
        torchmdx.Calculator(**{given: "x"})
