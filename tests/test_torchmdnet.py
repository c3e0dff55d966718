import json
from pathlib import Path

import numpy as np
import pytest
import torch
from structures import DATA

import torchmdx
from torchmdx import System, evaluate

FILES = sorted(path for path in DATA.glob("tensornet*.ckpt") if not path.name.startswith("tensornet2"))
REFERENCES = [
    pytest.param(path, record, id=f"{path.stem}-{record['name']}")
    for path in FILES
    for record in json.loads(path.with_suffix(".json").read_text())
]


def test_there_are_reference_results():
    assert len(FILES) == 5
    assert len(REFERENCES) == 16


def system(record) -> System:
    pbc = None if record["cell"] is None else True
    return System.create(record["positions"], record["numbers"], record["cell"], pbc, record["charge"] or 0)


@pytest.mark.parametrize(("path", "record"), REFERENCES)
def test_energies_and_forces_are_those_of_torchmdnet(path, record):
    result = evaluate(torchmdx.load(path, dtype=torch.float64), system(record))
    assert float(result.energy[0]) == pytest.approx(record["energy"], abs=2e-6)
    np.testing.assert_allclose(result.forces, record["forces"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensornet2.ckpt", "tensornet2.ckpt': model must be 'tensornet', got 'tensornet2'"),
        ("tensornet2-coulomb.ckpt", "tensornet2-coulomb.ckpt': model must be 'tensornet', got 'tensornet2'"),
    ],
)
def test_other_models_are_refused_by_name(data, name, message):
    with pytest.raises(ValueError, match=message):
        torchmdx.load(data / name)


@pytest.fixture
def edited(data, tmp_path):
    """edited(change, name): a checkpoint after change(options, weights), with unprefixed names of weights."""

    def edit(change, name="tensornet.ckpt") -> Path:
        checkpoint = torch.load(data / name, weights_only=True)
        weights = {key.removeprefix("model."): value for key, value in checkpoint["state_dict"].items()}
        change(checkpoint["hyper_parameters"], weights)
        checkpoint["state_dict"] = {f"model.{key}": value for key, value in weights.items()}
        path = tmp_path / "edited.ckpt"
        torch.save(checkpoint, path)
        return path

    return edit


def assert_same(path, original):
    got, wanted = torchmdx.load(path), torchmdx.load(original)
    assert got.config == wanted.config
    for name, value in wanted.state_dict().items():
        assert torch.equal(got.state_dict()[name], value), name


def put_rows_in_old_order(weights):
    """Rows of the last filter layers by channel, then part, instead of by part, then channel."""
    for name, value in weights.items():
        parts = name.split(".")
        last = parts[1:4] == ["tensor_embedding", "linears_scalar", "1"]
        last |= parts[1:2] == ["layers"] and parts[3:5] == ["linears_scalar", "2"]
        if last:
            channels = len(value) // 3
            order = [part * channels + channel for channel in range(channels) for part in range(3)]
            weights[name] = value[order]


@pytest.mark.parametrize("name", ["tensornet.ckpt", "tensornet-0layer.ckpt", "tensornet-so3-gauss.ckpt"])
@pytest.mark.parametrize("flag", [True, False])
def test_the_old_layout_is_read(edited, data, name, flag):
    def change(options, weights):
        put_rows_in_old_order(weights)
        options["check_errors"] = flag

    assert_same(edited(change, name), data / name)


def test_the_old_layout_matters(edited, data):
    path = edited(lambda options, weights: put_rows_in_old_order(weights))
    record = json.loads((data / "tensornet.json").read_text())[0]
    assert abs(float(evaluate(torchmdx.load(path), system(record)).energy[0]) - record["energy"]) > 1e-3


def test_the_name_of_a_file_does_not_matter(edited, data):
    path = edited(lambda options, weights: None)
    for suffix in (".pt", ".safetensors", ""):
        path = path.rename(path.with_suffix(suffix))
        assert_same(path, data / "tensornet.ckpt")


def test_old_names_are_read(edited, data):
    def change(options, weights):
        for index in (0, 2):
            for kind in ("weight", "bias"):
                value = weights.pop(f"output_model.output_network.layers.{index}.{kind}")
                weights[f"output_model.output_network.{index}.{kind}"] = value
        weights.pop("representation_model.distance.box", None)

    assert_same(edited(change), data / "tensornet.ckpt")


def test_no_option_but_the_one_makes_a_file_old(edited, data):
    others = {
        "check_error": True,
        "old_layout": True,
        "remap": True,
        "static_shapes": True,
        "max_num_neighbors": 1,
        "load_model": "old.ckpt",
        "derivative": False,
        "extra": {"check_errors": True},
        "dataset_arg": ["check_errors"],
    }
    path = edited(lambda options, weights: options.update(others))
    assert_same(path, data / "tensornet.ckpt")
    record = json.loads((data / "tensornet.json").read_text())[0]
    potential = torchmdx.load(path, dtype=torch.float64, device="cpu")
    assert float(evaluate(potential, system(record)).energy[0]) == pytest.approx(record["energy"], abs=2e-6)


def test_a_converted_file_is_never_remapped(edited, data, tmp_path):
    def change(options, weights):
        put_rows_in_old_order(weights)
        options["check_errors"] = True

    own = tmp_path / "own.safetensors"
    torchmdx.save(torchmdx.load(edited(change)), own)
    assert_same(own, data / "tensornet.ckpt")


REFERENCE_ENERGIES = torch.linspace(-5, 3, 20)[:, None]
FORMS = {
    "name and settings": lambda settings: {"prior_model": "Atomref", "prior_args": settings},
    "lists of names and settings": lambda settings: {"prior_model": ["Atomref"], "prior_args": [settings]},
    "list of dictionaries": lambda settings: {"prior_model": [{"Atomref": settings}], "prior_args": None},
}


@pytest.mark.parametrize("enabled", [True, False, None])
@pytest.mark.parametrize("form", FORMS)
def test_reference_energies_are_read_and_not_scaled(edited, data, form, enabled):
    settings = {"max_z": 20} | ({} if enabled is None else {"enable": enabled})

    def change(options, weights):
        options.update(FORMS[form](settings))
        weights["prior_model.0.initial_atomref"] = torch.zeros(20, 1)
        weights["prior_model.0.atomref.weight"] = REFERENCE_ENERGIES.clone()
        weights["mean"], weights["std"] = torch.tensor(0.5), torch.tensor(2.0)

    record = json.loads((data / "tensornet.json").read_text())[0]
    plain = torchmdx.load(data / "tensornet.ckpt")
    output = (record["energy"] - float(plain.shift)) / float(plain.scale)
    references = 0.0 if enabled is False else float(REFERENCE_ENERGIES[record["numbers"]].sum())
    got = evaluate(torchmdx.load(edited(change)), system(record)).energy[0]
    assert float(got) == pytest.approx(2 * output + references + 0.5, abs=1e-5)


def test_an_embedding_of_more_rows_than_there_are_elements_is_read(edited, data):
    def change(options, weights):
        name = "representation_model.tensor_embedding.emb.weight"
        options["max_z"] = 128
        options.update(FORMS["name and settings"]({"max_z": 128}))
        weights[name] = torch.cat([weights[name], torch.full((108, 16), torch.nan)])
        weights["prior_model.0.initial_atomref"] = torch.zeros(128, 1)
        weights["prior_model.0.atomref.weight"] = torch.zeros(128, 1)

    potential = torchmdx.load(edited(change))
    assert potential.config.max_z == 118
    record = json.loads((data / "tensornet.json").read_text())[0]
    assert float(evaluate(potential, system(record)).energy[0]) == pytest.approx(record["energy"], abs=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_model": "ZBL", "prior_args": {}}, "prior_model ZBL is not supported"),
        ({"prior_model": [{"Atomref": {}}, {"D2": None}]}, "prior_model D2 is not supported"),
        ({"output_model": "DipoleMoment"}, "output_model must be 'Scalar', got 'DipoleMoment'"),
        ({"reduce_op": "mean"}, "reduce_op must be 'add' or 'sum', got 'mean'"),
        ({"cutoff_lower": 1.0}, "cutoff_lower must be 0 .*, got 1.0"),
        ({"atom_filter": 0}, "atom_filter must be -1, got 0"),
        ({"model": "equivariant-transformer"}, "model must be 'tensornet', got 'equivariant-transformer'"),
        ({"output_mlp_num_layers": 2}, "output_mlp_num_layers must be 0 or None, got 2"),
        ({"spin": True}, "spin is not supported, got True"),
        ({"coulomb_cutoff": 10.0}, "coulomb_cutoff is not supported, got 10.0"),
        ({"activation": "gelu"}, "activation must be one of .*, got 'gelu'"),
        ({"rbf_type": "bessel"}, "radial_basis must be one of expnorm, gauss, got 'bessel'"),
    ],
)
def test_what_is_not_supported_is_named(edited, options, message):
    def change(held, weights):
        held.update(options)
        weights["prior_model.0.initial_atomref"] = torch.zeros(20, 1)
        weights["prior_model.0.atomref.weight"] = torch.zeros(20, 1)

    with pytest.raises(ValueError, match=message):
        torchmdx.load(edited(change))


def test_unknown_tensors_are_named(edited):
    path = edited(lambda options, weights: weights.update({"representation_model.secret": torch.ones(1)}))
    with pytest.raises(ValueError, match="unsupported tensors representation_model.secret"):
        torchmdx.load(path)


@pytest.mark.parametrize(
    "name",
    ["representation_model.linear.weight", "representation_model.layers.1.linears_scalar.2.bias", "mean"],
)
@pytest.mark.parametrize("old", [True, False])
def test_a_missing_tensor_is_named(edited, name, old):
    def change(options, weights):
        del weights[name]
        if old:
            options["check_errors"] = True

    with pytest.raises(ValueError, match=f"edited.ckpt' lacks the tensor {name}"):
        torchmdx.load(edited(change))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("representation_model.linear.weight", r"network.readout.weight in '.*' must have shape \[16, 48\], got \[3\]"),
        ("std", r"scale in '.*' must have shape \[\], got \[3\]"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(edited, name, message):
    path = edited(lambda options, weights: weights.update({name: torch.ones(3)}))
    with pytest.raises(ValueError, match=message):
        torchmdx.load(path)


def test_missing_settings_are_named(edited):
    def change(options, weights):
        del options["num_rbf"], options["max_z"]

    with pytest.raises(ValueError, match="lacks the settings num_rbf, max_z"):
        torchmdx.load(edited(change))


@pytest.mark.parametrize("held", [{}, {"state_dict": {}}, {"state_dict": {}, "hyper_parameters": 3}, [1, 2]])
def test_a_file_of_tensors_that_is_no_checkpoint_is_refused(tmp_path, held):
    path = tmp_path / "other.ckpt"
    torch.save(held, path)
    with pytest.raises(ValueError, match="is no torchmd-net checkpoint: it needs hyper_parameters and state_dict"):
        torchmdx.load(path)


@pytest.mark.parametrize("kept", [0, 3, 100, 5000, -30])
def test_a_truncated_checkpoint_is_refused(data, tmp_path, kept):
    path = tmp_path / "short.ckpt"
    path.write_bytes((data / "tensornet.ckpt").read_bytes()[:kept])
    with pytest.raises(ValueError, match="short.ckpt'"):
        torchmdx.load(path)
