"""Ensembles on disk: single files, zips, lists and folders of trainings; invalid ones are refused by name."""

import json
import zipfile

import ase.io
import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

import torchmdx
from torchmdx import Calculator, Ensemble
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.save_load import load_ensemble, load_one
from torchmdx.commands import cli
from torchmdx.training import loop


@pytest.fixture
def members(make_potential):
    """Of two architectures, in float32."""
    settings = dict(num_channels=4, num_layers=1)
    kinds = [dict(seed=1), dict(seed=2), dict(seed=3, model="tensornet2")]
    return [make_potential(torch.float32, **settings, **kind) for kind in kinds]


@pytest.fixture
def file(members, tmp_path):
    torchmdx.save(Ensemble(members), tmp_path / "three.safetensors")
    return tmp_path / "three.safetensors"


def assert_members(found, wanted):
    assert isinstance(found, Ensemble)
    for one, other in zip(found, wanted, strict=True):
        assert (one.config, one.prior_configs) == (other.config, other.prior_configs)
        own, given = one.state_dict(), other.state_dict()
        assert own.keys() == given.keys()
        assert all(torch.equal(own[name], given[name]) for name in own)


def test_an_ensemble_goes_into_one_file(members, file):
    assert_members(torchmdx.load(file), members)
    assert [potential.config for potential in load_ensemble(file)] == [member.config for member in members]
    moved = torchmdx.load(file, dtype=torch.float64)
    assert (moved.dtype, moved.training) == (torch.float64, False)
    assert not any(weight.requires_grad for weight in moved.parameters())
    with safetensors.safe_open(file, "pt") as held:
        metadata = held.metadata()
        names = set(held.keys())
    assert (metadata["format"], metadata["format_version"]) == ("torchmdx-ensemble", "1")
    assert [json.loads(held["config"])["model"] for held in json.loads(metadata["members"])] == [
        "tensornet", "tensornet", "tensornet2",
    ]  # fmt: skip
    assert {name.split(".")[1] for name in names} == {"0", "1", "2"}
    assert "members.0.network.readout.weight" in names


@pytest.mark.nightly
def test_every_way_to_give_an_ensemble(members, file, tmp_path, ethanol):
    paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
    for member, path in zip(members, paths, strict=True):
        torchmdx.save(member, path)
    with zipfile.ZipFile(tmp_path / "three.zip", "w") as archive:
        for path in paths:
            archive.write(path, path.name)
    for k in reversed(range(3)):  # as a training of three seeds leaves them
        (tmp_path / "run" / f"member-{k}").mkdir(parents=True)
        torchmdx.save(members[k], tmp_path / "run" / f"member-{k}" / loop.BEST)
        torchmdx.save(members[0], tmp_path / "run" / f"member-{k}" / loop.LAST)
    ways = [file, str(file), tmp_path / "three.zip", tmp_path / "run", str(tmp_path / "run"), paths]
    for way in ways:
        assert_members(torchmdx.load(way), members)
    results = []
    for way in [*ways, tuple(map(str, paths)), Ensemble(members), members, [members[0], paths[1], members[2]]]:
        ethanol.calc = Calculator(way, dtype="float64", device="cpu")
        ethanol.get_potential_energy()
        results.append(ethanol.calc.results["energy_spread"])
    assert results == pytest.approx([results[0]] * len(results), rel=1e-12)
    assert results[0] > 0


def test_members_of_a_folder_are_in_the_order_of_seeds(make_potential, tmp_path):
    for k in range(11):
        (tmp_path / f"member-{k}").mkdir()
        torchmdx.save(make_potential(seed=k, num_channels=2, num_layers=0), tmp_path / f"member-{k}" / loop.BEST)
    found = torchmdx.load(tmp_path)
    assert [int(name.split("member-")[1].split("/")[0]) for name in found.names] == list(range(11))
    (tmp_path / "member-4" / loop.BEST).unlink()
    with pytest.raises(FileNotFoundError, match=r"every member of the ensemble in .* must be trained: no .*member-4"):
        torchmdx.load(tmp_path)


def test_a_folder_that_is_no_ensemble_is_refused(tmp_path):
    (tmp_path / "member-x").mkdir()
    with pytest.raises(
        FileNotFoundError, match="no checkpoint at .*: a folder must hold best.safetensors, or member-0, member-1"
    ):
        torchmdx.load(tmp_path)


def test_what_needs_one_potential_refuses_several(file):
    with pytest.raises(ValueError, match="a single potential is needed, but .*three.safetensors' holds an ensem"):
        load_one(file)


def change(file, **metadata):
    """The same tensors with other metadata."""
    tensors = load_file(file)
    with safetensors.safe_open(file, "pt") as held:
        kept = held.metadata()
    save_file(tensors, file, {**kept, **metadata})


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (dict(format_version="2"), "reads ensembles of format version 1, .* has version '2'; update torchmdx"),
        (dict(format_version="x"), "reads ensembles of format version 1, .* has version 'x'$"),
        (dict(members="[1]"), r"lists no readable members, got '\[1\]'"),
        (dict(members="nothing"), "lists no readable members, got 'nothing'"),
        (dict(members="[]"), r"lists no readable members, got '\[\]'"),
        (dict(members="[{}, {}]"), "tensors of .* must belong to its 2 members, got 'members.2"),
        (dict(members="[{}, {}, {}]"), "three.safetensors/member 0' is .* not a torchmdx potential"),
    ],
)
def test_a_file_that_is_damaged_or_newer_is_refused(file, metadata, said):
    change(file, **metadata)
    with pytest.raises(ValueError, match=said):
        torchmdx.load(file)


def test_a_tensor_that_is_missing_is_named(file):
    tensors = load_file(file)
    with safetensors.safe_open(file, "pt") as held:
        metadata = held.metadata()
    del tensors["members.1.network.readout.weight"]
    save_file(tensors, file, metadata)
    with pytest.raises(ValueError, match="three.safetensors/member 1' do not fit .*network.readout.weight"):
        torchmdx.load(file)


def test_a_reader_of_single_potentials_refuses_the_file_clearly(file):
    """As every version without ensembles does, which accepts only the format "torchmdx-potential"."""
    from torchmdx.checkpoints.formats import own

    with pytest.raises(ValueError, match="its format must be 'torchmdx-potential', got 'torchmdx-ensemble'"):
        own.read(Source(str(file)))


def test_other_cutoffs_are_refused_with_the_names_of_the_files(make_potential, tmp_path):
    for name, cutoff in (("near", 4.0), ("far", 5.0)):
        torchmdx.save(make_potential(cutoff=cutoff, num_layers=0), tmp_path / f"{name}.safetensors")
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("near", "far")]
    said = "must have one cutoff: '.*near.safetensors' has 4.0 Å, '.*far.safetensors' has 5.0"
    with pytest.raises(ValueError, match=said):
        torchmdx.load(paths)
    with pytest.raises(ValueError, match=said):
        Calculator(paths, device="cpu")
    with pytest.raises(ValueError, match="an ensemble needs at least 2 potentials, got 1"):
        torchmdx.load(paths[:1])
    with pytest.raises(ValueError, match="sha256 needs a single file, got"):
        torchmdx.load(paths, sha256="0" * 64)


def test_the_command_line_takes_ensembles(file, members, ethanol, tmp_path, capsys):
    ase.io.write(tmp_path / "ethanol.xyz", ethanol)
    paths = []
    for k, member in enumerate(members):
        torchmdx.save(member, tmp_path / f"{k}.safetensors")
        paths += ["--model", str(tmp_path / f"{k}.safetensors")]
    ethanol.calc = Calculator(members, dtype="float64", device="cpu")
    ethanol.get_forces()
    wanted = ethanol.calc.results
    command = ["energy", str(tmp_path / "ethanol.xyz"), "--device", "cpu"]
    for given in (["--model", str(file)], paths):
        assert cli.main([*command, *given, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["energy_spread"] == pytest.approx(wanted["energy_spread"], rel=1e-9)
        np.testing.assert_allclose(row["forces_spread"], wanted["forces_spread"], rtol=1e-6)
        assert cli.main([*command, *given]) == 0
        _, head, line = capsys.readouterr().out.splitlines()
        assert head.endswith("its spread   max force spread")
        assert line.endswith(f" {wanted['energy_spread']:.6f} {wanted['forces_spread'].max():>18.6f}")
    assert cli.main([*command, *paths[:2]]) == 0
    assert "spread" not in capsys.readouterr().out
    relaxed = str(tmp_path / "relaxed.xyz")
    assert cli.main(["relax", command[1], "-o", relaxed, "--steps", "2", *paths, "--device", "cpu"]) == 1
    assert cli.main(["info", str(file)]) == 0
    assert capsys.readouterr().out.count("TensorNet") >= 3


def test_an_ensemble_is_converted_to_one_file_and_back(data, tmp_path, capsys):
    sources = [str(data / "tensornet.ckpt"), str(data / "tensornet-charged.ckpt")]
    one, zipped = tmp_path / "two.safetensors", tmp_path / "again.zip"
    assert cli.main(["convert", *sources, str(one)]) == 0
    assert_members(torchmdx.load(one), [torchmdx.load(source) for source in sources])
    assert cli.main(["convert", str(one), str(zipped)]) == 0
    assert_members(torchmdx.load(zipped), [torchmdx.load(source) for source in sources])
    with zipfile.ZipFile(zipped) as archive:
        assert archive.namelist() == ["000.safetensors", "001.safetensors"]
    # Reports and recorded energies are kept for each member, and loading checks them.
    with safetensors.safe_open(one, "pt") as held:
        kept = [json.loads(member["energies"]) for member in json.loads(held.metadata()["members"])]
    assert all(len(energies["energies"]) == 2 for energies in kept)
