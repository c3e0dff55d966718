"""Module paths that saved files hold lead to the modules of today."""

import pickle
from importlib import import_module

import pytest

from torchmdx.runtime.former_paths import MOVED


@pytest.mark.parametrize("path", MOVED)
def test_a_former_path_is_the_module_of_today(path):
    pytest.importorskip("openmm")
    today = import_module(MOVED[path])
    assert import_module(path) is today
    assert today.__name__ == MOVED[path]
    assert today.__spec__.name == MOVED[path]


def test_a_pickle_by_a_former_path_is_the_function_of_today():
    pytest.importorskip("openmm")
    restored = pickle.loads(b"ctorchmdx.openmm_force.transport_python\nrestore\n.")
    assert restored is import_module("torchmdx.openmm.transport_python").restore


def test_other_names_are_still_missing():
    with pytest.raises(ModuleNotFoundError, match=r"torchmdx\.openmm_forces"):
        import_module("torchmdx.openmm_forces")
