"""A small distillation from structures to checkpoint and page."""

import json
import signal

import numpy as np
import pytest
import torch
from ase.build import molecule

import torchmdx
from torchmdx import Potential, System, TensorNetConfig
from torchmdx.datasets.splits import read_split
from torchmdx.datasets.store import Store
from torchmdx.models.model_card import Card
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.training.distillation import outer_steps, page
from torchmdx.training.distillation.run import distill, folder_of
from torchmdx.training.distillation.settings import DistillSettings, Structures

SMALL = dict(frames=20, trajectories=2, layers=0, channels=4, epochs=2, batch_size=5, minutes=1e-3)


class Stops:
    """Interrupts that report a signal after a number of looks."""

    def __init__(self, looks=10**9):
        self.looks = looks

    @property
    def received(self):
        self.looks -= 1
        return signal.SIGINT if self.looks < 0 else None


@pytest.fixture
def quick(monkeypatch):
    """Two trials."""
    monkeypatch.setattr(outer_steps, "OUTER", (2.0,))
    monkeypatch.setattr(outer_steps, "LEAST_LENGTH", 0.02)


def structures_of(organic):
    water = System.from_ase(molecule("H2O"))
    crystal = System.create(water.positions, water.atomic_numbers, 7.0 * torch.eye(3), True)
    return Structures(organic, [crystal, System.from_ase(molecule("OH"), charge=-1.0)], ["water", "hydroxide"])


def test_a_distillation_writes_checkpoint_page_and_record(organic, tmp_path, quick, capsys):
    output = tmp_path / "fast.safetensors"
    result = distill(structures_of(organic), output, DistillSettings(**SMALL), Stops())
    said = capsys.readouterr().out
    assert "wrote" in said
    assert "forces of unseen frames" in said

    fast = torchmdx.load(output)
    assert (fast.card.name, fast.card.licence, fast.card.charges) == ("organic-1-fast", "MIT", (-1.0, 0.0))
    assert organic.origin.sha256 in fast.card.description
    assert "2 structures around 300 K" in fast.card.description
    record = json.loads((folder_of(output) / "distillation.json").read_text())
    assert record["asked"]["request"]["epochs"] == 2
    assert record["chosen"]["network"]["model"]["num_channels"] == 4
    assert len(record["chosen"]["result"]["trials"]) == 4
    assert "Multiple time steps" in (folder_of(output) / "report" / "index.html").read_text()

    # The error is that of frames of trajectories that were not trained on.
    store = Store.open(folder_of(output) / "frames.store")
    parts = read_split(folder_of(output) / "split.json", store)
    trained = {store.origin(k)[0] for k in parts["train"]}
    assert len(trained) == 4
    assert not trained & {store.origin(k)[0] for k in parts["test"]}
    errors = []
    for k in parts["test"]:
        frame = store.gather([k])
        found = torchmdx.evaluate(fast.double(), frame.system(0))
        errors.append((found.forces.numpy() - frame.forces).ravel())
    assert result["force_rmse"] == pytest.approx(np.sqrt(np.mean(np.concatenate(errors) ** 2)), rel=1e-4)

    with pytest.raises(FileExistsError, match=r"output files must not exist, got .*fast.safetensors"):
        distill(structures_of(organic), output, DistillSettings(**SMALL), Stops())
    output.unlink()
    with pytest.raises(FileExistsError, match="another request"):
        distill(structures_of(organic), output, DistillSettings(**{**SMALL, "epochs": 3}), Stops())


@pytest.mark.nightly
def test_a_fast_model_is_trained_further(organic, tmp_path, quick, monkeypatch):
    monkeypatch.setattr(page, "write", lambda *given: {"page": "", "force_rmse": 1.0, "force_rmse_relative": 1.0})
    start = Potential(TensorNetConfig(num_channels=4, num_layers=0, cutoff=3.2, max_z=20), [ZBLConfig(cutoff=1.0)])
    start.card = Card(elements=(1, 6, 8), charges=(0.0,))
    torchmdx.save(start, tmp_path / "start.safetensors")
    settings = {name: value for name, value in SMALL.items() if name not in ("layers", "channels")}
    request = DistillSettings(
        **settings | dict(epochs=1, learning_rate=1e-9), start=str(tmp_path / "start.safetensors")
    )
    distill(structures_of(organic), tmp_path / "fast.safetensors", request, Stops())
    fast = torchmdx.load(tmp_path / "fast.safetensors")
    assert (fast.config, fast.prior_configs) == (start.config, start.prior_configs)
    assert fast.card.elements == (1, 6, 8)
    assert fast.card.description.endswith("start.safetensors")
    for name, weight in start.named_parameters():
        assert torch.allclose(fast.get_parameter(name), weight, atol=1e-6), "nearly those it started from"


@pytest.mark.nightly
def test_a_distillation_that_is_interrupted_gives_the_same_fast_model(organic, tmp_path, quick, monkeypatch):
    monkeypatch.setattr(page, "write", lambda *given: {"page": "", "force_rmse": 1.0, "force_rmse_relative": 1.0})
    (tmp_path / "whole").mkdir()
    distill(structures_of(organic), tmp_path / "whole" / "fast.safetensors", DistillSettings(**SMALL), Stops())
    output, stops, looks = tmp_path / "fast.safetensors", 0, 60
    while distill(structures_of(organic), output, DistillSettings(**SMALL), Stops(looks)) is None:
        stops, looks = stops + 1, int(1.5 * looks)
        assert not output.exists()
    assert stops >= 3
    fast, other = torchmdx.load(output), torchmdx.load(tmp_path / "whole" / "fast.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(fast.parameters(), other.parameters(), strict=True))
