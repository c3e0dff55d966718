"""Tensors of all forms in which matgl stores them."""

from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from matgl_dgl_oracle import Oracle
from matgl_folders import description, energy_of, frames, state, write

from torchmdx import Potential, System, evaluate
from torchmdx.checkpoints.formats.reading import UnsupportedCheckpoint
from torchmdx.checkpoints.save_load import read


@pytest.mark.parametrize("module", ["_tensornet_pyg", "_tensornetwarp_pyg"])
@pytest.mark.parametrize("name", ["gauss", "so3"])
def test_version_1_has_source_and_target_exchanged(tmp_path, name, module):
    told, tensors = description(name), state(name)
    told["kwargs"]["model"] |= {"@module": f"matgl.models.{module}", "@model_version": 1}
    pair = tensors["model.tensor_embedding.emb2.weight"]
    tensors["model.tensor_embedding.emb2.weight"] = torch.cat(pair.chunk(2, dim=1)[::-1], dim=1)
    for kind in ("weight", "bias"):  # vectors lead to the target; under SO(3) that makes another energy
        tensors[f"model.tensor_embedding.distance_proj2.{kind}"] *= -1
    reading = read(write(tmp_path / "old", told, tensors))
    for frame in frames(name):
        assert energy_of(reading.potential.double(), frame) == pytest.approx(frame["energy"], abs=2e-6)
    exchanged = "source and target of the embedding exchanged: columns of pairs, signs of vectors"
    assert exchanged in reading.report.remapped


@pytest.mark.nightly_for("SO(3)")
@pytest.mark.parametrize("module", ["_tensornet", "_tensornet_dgl"])
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
def test_version_1_on_dgl_has_messages_of_the_atoms_own_tensors(tmp_path, group, module):
    told, tensors = description(), state()
    told["kwargs"]["model"] |= {"@module": f"matgl.models.{module}", "@model_version": 1}
    told["kwargs"]["model"]["init_args"]["equivariance_invariance_group"] = group
    reading = read(write(tmp_path / "dgl", told, tensors))
    potential = reading.potential.double()
    assert potential.config.messages == "target"
    assert f"matgl.models.{module}, version 1: messages carry the atom's own tensors" in reading.report.read
    chiral = Atoms("HOFNaP", [[0, 0, 0], [1.1, 0.1, 0], [0.2, 1.4, 0.3], [-0.9, 0.4, 2.0], [0.3, -1.2, 0.8]])
    oracle = Oracle(told, tensors)

    def energy(positions):
        return oracle.energy(chiral.numbers, positions, chiral.get_chemical_symbols())

    result = evaluate(potential, System.from_ase(chiral))
    assert float(result.energy[0]) == pytest.approx(energy(chiral.positions), abs=1e-9)
    forces = oracles.central_forces(lambda moved: [energy(p) for p, _ in moved], chiral.positions)
    np.testing.assert_allclose(result.forces, forces, rtol=0, atol=1e-6)
    # Read as the other form, or with vectors in the other direction, it would be another energy.
    neighbours = Potential(replace(potential.config, messages="source")).double()
    neighbours.load_state_dict(potential.state_dict())
    assert abs(float(evaluate(neighbours, System.from_ase(chiral)).energy[0] - result.energy[0])) > 1e-4
    assert (abs(energy(-chiral.positions) - energy(chiral.positions)) > 1e-6) == (group == "SO(3)")


def test_merged_maps_of_warp_and_unused_tensors(tmp_path):
    tensors = state()
    for kind in ("weight", "bias"):
        parts = [tensors.pop(f"model.tensor_embedding.distance_proj{k}.{kind}") for k in (1, 2, 3)]
        tensors[f"model.tensor_embedding.distance_proj.{kind}"] = torch.cat(parts)
    tensors["element_refs.onehot"] = torch.eye(11)
    tensors["model.tensor_embedding.emb3.weight"] = torch.zeros(3, 3)
    reading = read(write(tmp_path / "warp", description(), tensors))
    frame = frames("gauss")[1]
    assert energy_of(reading.potential.double(), frame) == pytest.approx(frame["energy"], abs=2e-6)
    assert any("element_refs.onehot" in line for line in reading.report.ignored)


def test_exponential_normal_functions_are_read(tmp_path):
    told, tensors = description(), state()
    told["kwargs"]["model"]["init_args"]["rbf_type"] = "ExpNorm"
    del tensors["model.bond_expansion.rbf.centers"]
    means, betas = torch.linspace(0.01, 1.0, 32), torch.linspace(100.0, 200.0, 32)
    tensors |= {"model.bond_expansion.rbf.means": means, "model.bond_expansion.rbf.betas": betas}
    potential = read(write(tmp_path / "exponential", told, tensors)).potential
    r = torch.tensor([0.7, 2.0, 4.9])
    exact = 0.5 * (torch.cos(torch.pi * r / 5) + 1)[:, None] * torch.exp(-betas * (torch.exp(-r)[:, None] - means) ** 2)
    torch.testing.assert_close(potential.network.basis(r), exact)


def test_without_references_they_are_zero(tmp_path):
    tensors = state()
    del tensors["element_refs.property_offset"]
    potential = read(write(tmp_path / "plain", description(), tensors)).potential
    assert not potential.reference_energies.any()


def test_left_over_and_missing_tensors_are_named(tmp_path):
    more = state() | {"model.layers.0.spin.weight": torch.zeros(2)}
    with pytest.raises(UnsupportedCheckpoint, match="unsupported tensors model.layers.0.spin.weight"):
        read(write(tmp_path / "more", description(), more))
    fewer = state()
    del fewer["data_std"]
    with pytest.raises(ValueError, match="lacks the tensor data_std"):
        read(write(tmp_path / "fewer", description(), fewer))
