import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from structures import DATA

import torchmdx
import torchmdx.checkpoints.save_load
from torchmdx import System, evaluate
from torchmdx.checkpoints.save_load import read

FILES = sorted(DATA.glob("tensornet*.ckpt"))
REFERENCES = [
    pytest.param(path, record, id=f"{path.stem}-{record['name']}")
    for path in FILES
    for record in json.loads(path.with_suffix(".json").read_text())
]
# Both sides round alike but for one prior: torchmd-net computes Z^0.23 in float32.
TOLERANCES = {"tensornet-zbl": (5e-6, 5e-6)}


def test_there_are_reference_results():
    assert len(FILES) == 12
    assert len(REFERENCES) == 42


def system(record) -> System:
    pbc = None if record["cell"] is None else True
    charges = record.get("partial_charges")
    return System.create(record["positions"], record["numbers"], record["cell"], pbc, record["charge"] or 0, charges)


@pytest.mark.parametrize(("path", "record"), REFERENCES)
def test_energies_and_forces_are_those_of_torchmdnet(path, record):
    energy, force = TOLERANCES.get(path.stem, (2e-6, 1e-6))
    result = evaluate(torchmdx.load(path, dtype=torch.float64), system(record))
    assert float(result.energy[0]) == pytest.approx(record["energy"], abs=energy)
    np.testing.assert_allclose(result.forces, record["forces"], rtol=0, atol=force)


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
    assert got.prior_configs == wanted.prior_configs
    for name, value in wanted.state_dict().items():
        assert torch.equal(got.state_dict()[name], value), name


def put_rows_in_old_order(weights):
    """Rows of the last filter layers by channel, then part, instead of by part, then channel.

    In a TensorNet2 those of the embedding alone: its layers never had another order.
    """
    second = any("charge_predict" in name for name in weights)
    for name, value in weights.items():
        parts = name.split(".")
        last = parts[1:4] == ["tensor_embedding", "linears_scalar", "1"]
        last |= parts[1:2] == ["layers"] and parts[3:5] == ["linears_scalar", "2"] and not second
        if last:
            channels = len(value) // 3
            order = [part * channels + channel for channel in range(channels) for part in range(3)]
            weights[name] = value[order]


@pytest.mark.nightly_for("False")
@pytest.mark.parametrize("name", [path.name for path in FILES])
@pytest.mark.parametrize("flag", [True, False])
def test_the_old_layout_is_read(edited, data, name, flag):
    def change(options, weights):
        put_rows_in_old_order(weights)
        options["check_errors"] = flag

    assert_same(edited(change, name), data / name)


def name_head_as_before(weights):
    """Names of the head's layers as torchmd-net wrote them until April 2024."""
    for key in [key for key in weights if "output_network.layers" in key]:
        weights[key.replace("output_network.layers", "output_network")] = weights.pop(key)


# How torchmd-net's files of the old layout differ from those of the new one, by the time when they were written.
TIMES = {
    "June 2023 to January 2024": (("static_shapes", "output_mlp_num_layers"), True),
    "without old names": (("static_shapes",), False),
    "without old settings": ((), True),
}


@pytest.mark.parametrize("time", TIMES)
def test_files_of_2023_have_the_old_layout(edited, data, time):
    missing, old_names = TIMES[time]

    def change(options, weights):
        put_rows_in_old_order(weights)
        for name in missing:
            options.pop(name, None)
        if old_names:
            name_head_as_before(weights)

    reading = read(edited(change))
    record = json.loads((data / "tensornet.json").read_text())[0]
    result = evaluate(reading.potential.double(), system(record))
    assert float(result.energy[0]) == pytest.approx(record["energy"], abs=2e-6)
    np.testing.assert_allclose(result.forces, record["forces"], rtol=0, atol=1e-6)
    reason = "no 'static_shapes' in its settings" if missing else "old names of the head's layers"
    rows = "embedding.gate.2, layers.0.filters.4, layers.1.filters.4"
    assert f"old layout ({reason}): rows of {rows}" in reading.report.remapped


@pytest.mark.parametrize("name", ["tensornet", "tensornet2"])
def test_the_old_layout_matters(edited, data, name):
    path = edited(lambda options, weights: put_rows_in_old_order(weights), f"{name}.ckpt")
    record = json.loads((data / f"{name}.json").read_text())[0]
    assert abs(float(evaluate(torchmdx.load(path), system(record)).energy[0]) - record["energy"]) > 1e-3


@pytest.mark.parametrize("alias", ["tensornetv2_alt", "tensornet-nqe"])
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("name", ["tensornet2.ckpt", "tensornet2-coulomb.ckpt"])
def test_names_from_before_the_release_are_read(edited, data, alias, old, name):
    def change(options, weights):
        options["model"] = alias
        if old:
            options["check_errors"] = False
            put_rows_in_old_order(weights)
            name_head_as_before(weights)
            weights.pop("representation_model.distance.box")

    assert_same(edited(change, name), data / name)


def test_the_name_of_a_file_does_not_matter(edited, data):
    path = edited(lambda options, weights: None)
    for suffix in (".pt", ".safetensors", ""):
        path = path.rename(path.with_suffix(suffix))
        assert_same(path, data / "tensornet.ckpt")


def test_old_names_are_read(edited, data):
    def change(options, weights):
        put_rows_in_old_order(weights)
        name_head_as_before(weights)
        weights.pop("representation_model.distance.box", None)

    assert_same(edited(change), data / "tensornet.ckpt")


def test_no_other_option_makes_a_file_old(edited, data):
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
        # Of other models: the peer's trainer writes them for every one.
        "q_dim": 16,
        "q_weights": [1.0],
        "coulomb_cutoff": 10.0,
        "repulsion": True,
        "spin": True,
        "vector_cutoff": True,
        "output_mlp_num_layers": 2,
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


ZBL = {"cutoff_distance": 4.0, "max_num_neighbors": 9, "distance_scale": 1e-10, "energy_scale": 1.6e-19}


def prior(name, settings, **tensors):
    """A change that gives a checkpoint one prior."""

    def change(options, weights):
        options.update(prior_model=name, prior_args=settings)
        weights.update({f"prior_model.0.{key}": value for key, value in tensors.items()})

    return change


def options(**held):
    """A change of some options."""
    return lambda options, weights: options.update(held)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (prior("External", {}), "prior_model External is not supported"),
        (options(prior_model=[{"Atomref": {"enable": False}}, {"D4": None}]), "prior_model D4 is not supported"),
        (options(model="tensornet2_resp"), "tensornet2_resp, such as AceFF-2-RESP-1, has a head of RESP charges"),
        (options(output_model="DipoleMoment"), "output_model must be 'Scalar', got 'DipoleMoment'"),
        (
            options(output_model="ScalarPlusWeightedCoulomb"),
            "output_model must be 'Scalar', got 'ScalarPlusWeightedCoulomb'",
        ),
        (options(reduce_op="mean"), "reduce_op must be 'add' or 'sum', got 'mean'"),
        (options(cutoff_lower=1.0), "cutoff_lower must be 0 .*, got 1.0"),
        (options(atom_filter=0), "atom_filter must be -1, got 0"),
        (
            options(model="equivariant-transformer"),
            "model must be 'tensornet' or 'tensornet2' or 'tensornetv2_alt' or 'tensornet-nqe', got 'equivariant-tr",
        ),
        (options(activation="gelu"), "activation must be one of .*, got 'gelu'"),
        (options(rbf_type="bessel"), "rbf_type must be 'expnorm' or 'gauss', got 'bessel'"),
        (prior("ZBL", {}, atomic_number=torch.arange(20)), "prior_model 0 lacks the settings cutoff_distance"),
        (prior("ZBL", ZBL), "lacks the tensor prior_model.0.atomic_number"),
        (
            prior("ZBL", ZBL, atomic_number=torch.tensor([0, 1, 6, 8])),
            "atomic_number of prior_model 0 must map every number to itself",
        ),
        (
            prior("ZBL", {**ZBL, "distance_scale": 1e-9}, atomic_number=torch.arange(20)),
            r"distance_scale of prior_model 0 must be 1e-10 m \(Å\), got 1e-09",
        ),
        (prior("Coulomb", {}), "prior_model 0 lacks the settings lower_switch_distance, upper_switch_distance"),
    ],
)
def test_what_is_not_supported_is_named(edited, change, message):
    def changed(held, weights):
        weights["prior_model.0.initial_atomref"] = torch.zeros(20, 1)
        weights["prior_model.0.atomref.weight"] = torch.zeros(20, 1)
        change(held, weights)

    with pytest.raises(ValueError, match=f"edited.ckpt': .*{message}|{message}"):
        torchmdx.load(edited(changed))


@pytest.mark.parametrize("name", ["tensornet2.ckpt", "tensornet2-coulomb.ckpt"])
def test_a_second_tensornet_without_its_number_of_charges_is_refused(edited, name):
    with pytest.raises(ValueError, match="lacks the settings q_dim"):
        torchmdx.load(edited(lambda options, weights: options.pop("q_dim"), name))


def test_half_precision_becomes_single(edited, data):
    def change(options, weights):
        weights.update({key: value.half() for key, value in weights.items()})

    reading = read(edited(change))
    assert reading.potential.dtype == torch.float32
    assert any("tensors of half precision to float32" in line for line in reading.report.remapped)
    record = json.loads((data / "tensornet.json").read_text())[0]
    assert float(evaluate(reading.potential, system(record)).energy[0]) == pytest.approx(record["energy"], abs=0.05)


def test_a_head_of_more_layers_is_read_with_either_naming(edited, data):
    def change(options, weights):
        put_rows_in_old_order(weights)
        name_head_as_before(weights)

    assert torchmdx.load(data / "tensornet2-cut.ckpt").config.num_head_layers == 1
    assert_same(edited(change, "tensornet2-cut.ckpt"), data / "tensornet2-cut.ckpt")


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_report_says_what_was_read_remapped_and_ignored(edited):
    def change(options, weights):
        put_rows_in_old_order(weights)
        options.update(model="tensornet-nqe", check_errors=True, lr=1e-3, batch_size=64)

    reading = read(edited(change, "tensornet2-coulomb.ckpt"))
    text = str(reading.report)
    for words in (
        "read:\n  - model tensornet-nqe, output model ScalarPlusWeightedCoulomb",
        "  - 80 tensors",
        "periodic structures, which the file cannot do, are summed over all images",
        "remapped:\n  - model tensornet-nqe is tensornet2: a name from before its release",
        "  - Coulomb term of the output model to the prior coulomb, its strength times std",
        "  - old layout ('check_errors' in its settings): rows of embedding.gate.2",
        "ignored:\n",
        "  - max_num_neighbors = 64: torchmdx keeps every neighbour",
        "  - settings that the energy does not depend on: batch_size, lr",
    ):
        assert words in text, text
    assert "layers.0.filters" not in text
    assert len(reading.report.sha256) == 64


def test_the_report_of_a_file_with_nothing_to_change(data):
    report = read(data / "tensornet.ckpt").report
    assert report.remapped == []
    assert "remapped: nothing" in str(report)


def test_coulomb_of_a_file_without_cutoff_is_never_cut(data):
    (config,) = torchmdx.load(data / "tensornet2-coulomb.ckpt").prior_configs
    assert (config.periodic, config.cut_in_vacuum, config.damping, config.dielectric) == ("auto", False, 4.6, 78.3)
    (config,) = torchmdx.load(data / "tensornet2-cut.ckpt").prior_configs
    assert (config.cutoff, config.cut_in_vacuum) == (5.5, True)


@pytest.mark.parametrize("total", [True, False])
def test_reference_energies_that_were_removed_come_back_when_asked_for(edited, data, total):
    def change(options, weights):
        options.update(
            remove_ref_energy=True, prior_model=[{"Atomref": {"enable": False}}], prior_args=[{"enable": False}]
        )
        weights["prior_model.0.initial_atomref"] = REFERENCE_ENERGIES.clone()
        weights["prior_model.0.atomref.weight"] = REFERENCE_ENERGIES.clone()

    record = json.loads((data / "tensornet.json").read_text())[0]
    reading = read(edited(change), total_energy=total)
    references = float(REFERENCE_ENERGIES[record["numbers"]].sum()) if total else 0.0
    got = float(evaluate(reading.potential, system(record)).energy[0])
    assert got == pytest.approx(record["energy"] + references, abs=1e-5)
    ignored = any("request total energies to include them" in line for line in reading.report.ignored)
    assert ignored != total


# -- ensembles ---------------------------------------------------------------------------------------------------------


def zipped(path, **files) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return path


def test_an_ensemble_is_read_from_a_zip_and_from_a_list(edited, data, tmp_path):
    def change(options, weights):
        weights["mean"] += 1.0

    paths = [data / "tensornet.ckpt", edited(change)]
    first, second = (path.read_bytes() for path in paths)
    folder = tmp_path / "members.zip"
    with zipfile.ZipFile(folder, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/b.ckpt", second)
        archive.writestr("run/a.ckpt", first)
        archive.writestr("__MACOSX/run/._a.ckpt", b"not a checkpoint")
        archive.writestr("readme.txt", "two models")
    for source in (folder, str(folder), paths):
        ensemble = torchmdx.checkpoints.save_load.load_ensemble(source, dtype=torch.float32)
        assert [float(potential.shift) for potential in ensemble] == pytest.approx([-3.25, -2.25])
        assert all(potential.dtype == torch.float32 and not potential.training for potential in ensemble)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited.ckpt", "members.zip"]


def test_one_potential_is_not_read_from_an_ensemble(data, tmp_path):
    path = zipped(tmp_path / "two.zip", a_ckpt=b"1", b_ckpt=b"2")
    with pytest.raises(ValueError, match="a single potential is needed, but .*two.zip' is a zip of 2 checkpoints"):
        torchmdx.checkpoints.save_load.load_one(path)
    with pytest.raises(
        ValueError, match="must be a file of several potentials, .* or a list of paths, got .*tensornet.ckpt' with one"
    ):
        torchmdx.checkpoints.save_load.load_ensemble(data / "tensornet.ckpt")


@pytest.mark.parametrize(("files", "held"), [({}, "nothing"), ({"a_txt": "", "b_md": ""}, "a.txt, b.md")])
def test_a_zip_with_no_model_is_refused(tmp_path, files, held):
    path = zipped(tmp_path / "empty.zip", **files)
    for read_it in (torchmdx.load, torchmdx.checkpoints.save_load.load_ensemble):
        with pytest.raises(ValueError, match=f"empty.zip' must hold checkpoints .*, got {held}"):
            read_it(path)


def test_an_empty_list_is_no_ensemble():
    with pytest.raises(ValueError, match="an ensemble needs at least one checkpoint, got none"):
        torchmdx.checkpoints.save_load.load_ensemble([])


def test_a_member_that_is_broken_is_named(data, tmp_path):
    whole = (data / "tensornet.ckpt").read_bytes()
    path = zipped(tmp_path / "two.zip", a_ckpt=whole, b_ckpt=whole[:1000])
    with pytest.raises(ValueError, match="two.zip/b.ckpt' is not a readable checkpoint"):
        torchmdx.checkpoints.save_load.load_ensemble(path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("tensornet-zbl.ckpt", "must have one cutoff: .*tensornet.ckpt' has 4.5 Å, .*tensornet-zbl.ckpt' has 4.0"),
        ("edited", r"must have one range of elements: .* has 19 \(the last one\), .*edited.ckpt' has 9"),
    ],
)
def test_an_ensemble_of_different_cutoffs_or_elements_is_refused(edited, data, other, message):
    def change(options, weights):
        options["max_z"] = 10
        name = "representation_model.tensor_embedding.emb.weight"
        weights[name] = weights[name][:10]

    second = edited(change) if other == "edited" else data / other
    with pytest.raises(ValueError, match=message):
        torchmdx.checkpoints.save_load.load_ensemble([data / "tensornet.ckpt", second])


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
    with pytest.raises(ValueError, match="is not a torchmd-net checkpoint: it needs hyper_parameters and state_dict"):
        torchmdx.load(path)


@pytest.mark.parametrize("kept", [0, 3, 100, 5000, -30])
def test_a_truncated_checkpoint_is_refused(data, tmp_path, kept):
    path = tmp_path / "short.ckpt"
    path.write_bytes((data / "tensornet.ckpt").read_bytes()[:kept])
    with pytest.raises(ValueError, match="short.ckpt'"):
        torchmdx.load(path)
