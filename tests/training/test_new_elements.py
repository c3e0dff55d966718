"""Fine-tuning on elements that the potential was not trained on."""

import made_up
import numpy as np
import pytest
import torch
import yaml

import torchmdx
from torchmdx.checkpoints.save_load import save
from torchmdx.commands.cli import main
from torchmdx.datasets.frames import Frames
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.training.new_elements import new_elements, with_elements

SIZES = dict(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0)


def base(max_z, elements=(1, 6), priors=()):
    """A potential for these elements, with rows of NaN for the others, as untrained ones may have."""
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(max_z=max_z, **SIZES), priors)
    potential.card = Card(elements=elements)
    for z in elements:
        potential.reference_energies[z] = made_up.LONE[z]
    others = [z for z in range(max_z + 1) if z not in elements]
    with torch.no_grad():
        potential.network.embedding.elements.weight[others] = torch.nan
    potential.reference_energies[others] = torch.nan
    return potential


@pytest.mark.nightly_for("20")
@pytest.mark.parametrize("max_z", [6, 20])
def test_known_elements_keep_their_energies_and_new_ones_get_finite_embeddings(max_z):
    potential = base(max_z)
    assert new_elements(potential, {1, 6, 8}) == (8,)
    wider = with_elements(potential, (8,), seed=3)
    assert wider.config.max_z == max(max_z, 8)
    frame = Frames.single(np.array([[0.0, 0, 0], [0, 0, 1.1], [0, 1.3, 0]]), np.array([6, 1, 1])).system(0)
    torch.testing.assert_close(evaluate(wider, frame).energy, evaluate(base(max_z), frame).energy)
    row = wider.network.embedding.elements.weight[8]
    assert torch.isfinite(row).all()
    again = with_elements(base(max_z), (8,), seed=3).network.embedding.elements.weight[8]
    assert torch.equal(row, again)
    assert float(wider.reference_energies[8]) == 0.0


def test_elements_of_a_potential_without_a_list_are_those_with_a_reference():
    potential = base(20)
    potential.card = Card()
    assert new_elements(potential, {1, 6, 8, 30}) == (8, 30)
    potential.reference_energies.zero_()
    assert new_elements(potential, {1, 6, 8, 30}) == (30,)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return made_up.store(tmp_path_factory.mktemp("data") / "st", 60)


@pytest.mark.nightly_for("20")
@pytest.mark.parametrize("max_z", [6, 20])
def test_a_new_element_gets_a_fitted_reference_and_a_trained_embedding(tmp_path, data, capsys, max_z):
    save(base(max_z), tmp_path / "base.safetensors")
    values = made_up.values(data.path, finetune={"checkpoint": str(tmp_path / "base.safetensors")})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]
    frozen = [*words, "--finetune.freeze", "[network.embedding]"]
    assert main(frozen) == 2
    assert "must leave network.embedding.elements.weight trainable for elements that are new" in (
        said := capsys.readouterr().err
    )
    assert "got O" in said
    assert main([*words, "--training.epochs", "2", "--optimizer.ema_decay", "0"]) == 0
    assert "base.safetensors: O; reference energies are fitted, embeddings are trained" in capsys.readouterr().err
    tuned, begun = torchmdx.load(tmp_path / "run" / "last.safetensors"), with_elements(base(max_z), (8,), seed=0)
    assert tuned.card.elements == (1, 6, 8)
    assert tuned.reference_energies[[1, 6]].tolist() == pytest.approx([made_up.LONE[1], made_up.LONE[6]])
    # The untrained network adds a few eV; the element itself has -2040 eV.
    assert float(tuned.reference_energies[8]) == pytest.approx(made_up.LONE[8], abs=20)
    changed = (tuned.network.embedding.elements.weight - begun.network.embedding.elements.weight).abs()
    assert changed[8].max() > 1e-5


def test_an_element_that_a_prior_does_not_know_is_refused(tmp_path, data, capsys):
    save(base(6, priors=[D2Config(c6=(0.0,) * 8, radii=(1.0,) * 8, cutoff=4.0)]), tmp_path / "base.safetensors")
    values = made_up.values(data.path, finetune={"checkpoint": str(tmp_path / "base.safetensors")})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]) == 2
    assert "must cover atomic number 8, which occurs in" in capsys.readouterr().err
