"""Tensors of all forms in which matgl stores them."""

import pytest
import torch
from matgl_folders import description, energy_of, frames, state, write

from torchmdx.matgl.folder import read_matgl
from torchmdx.torchmdnet.report import UnsupportedCheckpoint


def test_version_1_has_source_and_target_exchanged(tmp_path):
    told, tensors, width = description(), state(), 16
    told["kwargs"]["model"]["@model_version"] = 1
    pair = tensors["model.tensor_embedding.emb2.weight"]
    tensors["model.tensor_embedding.emb2.weight"] = torch.cat([pair[:, width:], pair[:, :width]], dim=1)
    reading = read_matgl(write(tmp_path / "old", told, tensors))
    frame = frames("gauss")[0]
    assert energy_of(reading.potential.double(), frame) == pytest.approx(frame["energy"], abs=2e-6)
    assert "@model_version 1: source and target of the pair embedding exchanged" in reading.report.remapped


def test_merged_maps_of_warp_and_unused_tensors(tmp_path):
    tensors = state()
    for kind in ("weight", "bias"):
        parts = [tensors.pop(f"model.tensor_embedding.distance_proj{k}.{kind}") for k in (1, 2, 3)]
        tensors[f"model.tensor_embedding.distance_proj.{kind}"] = torch.cat(parts)
    tensors["element_refs.onehot"] = torch.eye(11)
    tensors["model.tensor_embedding.emb3.weight"] = torch.zeros(3, 3)
    reading = read_matgl(write(tmp_path / "warp", description(), tensors))
    frame = frames("gauss")[1]
    assert energy_of(reading.potential.double(), frame) == pytest.approx(frame["energy"], abs=2e-6)
    assert any("element_refs.onehot" in line for line in reading.report.ignored)


def test_exponential_normal_functions_are_read(tmp_path):
    told, tensors = description(), state()
    told["kwargs"]["model"]["init_args"]["rbf_type"] = "ExpNorm"
    del tensors["model.bond_expansion.rbf.centers"]
    means, betas = torch.linspace(0.01, 1.0, 32), torch.linspace(100.0, 200.0, 32)
    tensors |= {"model.bond_expansion.rbf.means": means, "model.bond_expansion.rbf.betas": betas}
    potential = read_matgl(write(tmp_path / "exponential", told, tensors)).potential
    r = torch.tensor([0.7, 2.0, 4.9])
    exact = 0.5 * (torch.cos(torch.pi * r / 5) + 1)[:, None] * torch.exp(-betas * (torch.exp(-r)[:, None] - means) ** 2)
    torch.testing.assert_close(potential.network.basis(r), exact)


def test_without_references_they_are_zero(tmp_path):
    tensors = state()
    del tensors["element_refs.property_offset"]
    potential = read_matgl(write(tmp_path / "plain", description(), tensors)).potential
    assert not potential.reference_energies.any()


def test_left_over_and_missing_tensors_are_named(tmp_path):
    more = state() | {"model.layers.0.spin.weight": torch.zeros(2)}
    with pytest.raises(UnsupportedCheckpoint, match="unsupported tensors model.layers.0.spin.weight"):
        read_matgl(write(tmp_path / "more", description(), more))
    fewer = state()
    del fewer["data_std"]
    with pytest.raises(ValueError, match="lacks the tensor data_std"):
        read_matgl(write(tmp_path / "fewer", description(), fewer))
