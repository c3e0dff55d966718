"""What is refused in the description of a matgl model, and how errors name it."""

import pytest
from matgl_folders import description, energy_of, frames, state, write

from torchmdx.checkpoints.formats.reading import UnsupportedCheckpoint
from torchmdx.checkpoints.save_load import read


def change(where: str, value):
    def apply(told: dict) -> None:
        *path, last = where.split(".")
        for key in path:
            told = told[key]
        told[last] = value

    return apply


ARGUMENTS = "kwargs.model.init_args"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (change("@class", "M3GNet"), "@class must be 'Potential', got 'M3GNet'"),
        (change("kwargs.model.@class", "CHGNet"), "@class must be 'TensorNet' or 'QET', got 'CHGNet'"),
        (change("kwargs.model.@model_version", 3), "@model_version of the TensorNet must be 1 or 2, got 3"),
        (
            change("kwargs.model.@module", "matgl.models._qet"),
            "@module must be matgl.models._tensornet or .*, got '.*_qet'",
        ),
        (change("kwargs.model.@module", None), "@module must be matgl.models._tensornet or .*, got None"),
        (change("kwargs.calc_repuls", True), "calc_repuls must be False, got True"),
        (change("kwargs.spin", True), "torchmdx does not know the settings spin"),
        (change(f"{ARGUMENTS}.is_intensive", True), "is_intensive must be False, got True"),
        (change(f"{ARGUMENTS}.include_state", True), "include_state must be False, got True"),
        (change(f"{ARGUMENTS}.activation_type", "tanh"), "activation_type must be 'swish', got 'tanh'"),
        (change(f"{ARGUMENTS}.rbf_type", "Chebyshev"), "rbf_type must be 'SphericalBessel' or .*, got 'Chebyshev'"),
        (change(f"{ARGUMENTS}.rbf_type", "SphericalBessel"), "use_smooth must be True .*, got False"),
        (change(f"{ARGUMENTS}.equivariance_invariance_group", "E(3)"), r"must be 'O\(3\)' or 'SO\(3\)', got 'E\(3\)'"),
        (change(f"{ARGUMENTS}.spins", 2), "torchmdx does not know the settings spins"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, changed, text):
    told = description()
    changed(told)
    with pytest.raises(UnsupportedCheckpoint, match=text) as caught:
        read(write(tmp_path / "other", told, state()))
    assert "model.json" in str(caught.value)


@pytest.mark.parametrize("module", ["_tensornet", "_tensornet_dgl", "_tensornet_pyg"])
def test_messages_of_version_2_carry_the_neighbours_tensors(tmp_path, module):
    told = description()
    change("kwargs.model.@module", f"matgl.models.{module}")(told)
    potential = read(write(tmp_path / "new", told, state())).potential.double()
    frame = frames("gauss")[0]
    assert potential.config.messages == "source"
    assert energy_of(potential, frame) == pytest.approx(frame["energy"], abs=2e-6)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (change("kwargs", []), "must hold the kwargs of its Potential"),
        (change(f"{ARGUMENTS}.cutoff", None), "cutoff must be a number of Å, got None"),
        (change(f"{ARGUMENTS}.units", 10**7), "num_channels must be <= 4096"),
        (change(f"{ARGUMENTS}.units", 8), "must have shape"),
        (change(f"{ARGUMENTS}.nblocks", 3), "lacks the tensor model.layers.2"),
        (change(f"{ARGUMENTS}.element_types", ["H", "Xx"]), "must be distinct elements, got Xx"),
        (change(f"{ARGUMENTS}.element_types", ["H", "C"]), "must have a row for each of 2 elements"),
        (change(f"{ARGUMENTS}.width", -1.0), "width must be > 0 and finite, got -1.0"),
    ],
)
def test_damaged_descriptions_are_refused(tmp_path, changed, text):
    told = description()
    changed(told)
    with pytest.raises(ValueError, match=text):
        read(write(tmp_path / "other", told, state()))
