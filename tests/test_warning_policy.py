"""Warnings are errors where they are attributed to torchmdx or its tests; those of other packages are not."""

import warnings

import pytest

WARNS = "import warnings\ndef warn(category, stacklevel=1): warnings.warn('of the policy', category, stacklevel)"
CALLS = "def call(function, *arguments): function(*arguments)"
OURS = (
    *("torchmdx", "torchmdx.step.captured_step", "torchmdx.models.potential", "__main__"),
    *("test_warning_policy", "conftest", "structures", "documents.blocks", "01_energy_and_forces"),
)
OTHERS = (
    *("ase.atoms", "torch.jit._serialization", "numpy._core.numeric", "openmm.app.element", "openmmtorch", "pytest"),
    *("torchmdxtra", "not_torchmdx", "models"),
)


def function_of(module: str, name: str, code: str):
    """The function of that name, from code that runs as that module."""
    names: dict = {"__name__": module}
    exec(code, names)
    return names[name]


@pytest.mark.parametrize("category", [DeprecationWarning, UserWarning, RuntimeWarning, ResourceWarning])
@pytest.mark.parametrize("module", OURS)
def test_a_warning_of_ours_is_an_error(module, category):
    with pytest.raises(category, match="of the policy"):
        function_of(module, "warn", WARNS)(category)


@pytest.mark.parametrize("category", [DeprecationWarning, UserWarning, RuntimeWarning, ResourceWarning])
@pytest.mark.parametrize("module", OTHERS)
def test_a_warning_of_another_package_is_none(module, category):
    with warnings.catch_warnings(record=True):  # the filters stay as they are
        function_of(module, "warn", WARNS)(category)


def test_the_caller_counts_where_stacklevel_points_to_it():
    warn = function_of("ase.atoms", "warn", WARNS)
    with pytest.raises(DeprecationWarning):
        function_of("torchmdx.structures.system", "call", CALLS)(warn, DeprecationWarning, 2)
    with warnings.catch_warnings(record=True):
        function_of("ase.io.extxyz", "call", CALLS)(warn, DeprecationWarning, 2)


@pytest.mark.parametrize(
    "category", [pytest.PytestUnraisableExceptionWarning, pytest.PytestUnhandledThreadExceptionWarning]
)
def test_exceptions_that_nobody_catches_are_errors(category):
    with pytest.raises(category):
        function_of("_pytest.unraisableexception", "warn", WARNS)(category)
