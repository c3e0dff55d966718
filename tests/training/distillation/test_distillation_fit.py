"""The training of a fast model: its length."""

import contextlib
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torchmdx.training.config import ModelSection
from torchmdx.training.distillation import fit
from torchmdx.training.distillation.settings import TRAINING, DistillSettings

CPU = torch.device("cpu")
MODEL = ModelSection(num_layers=0, num_channels=4, cutoff=3.0, max_z=20)


class Sizes:
    """A store of frames with as many atoms each."""

    def __init__(self, frames, atoms):
        self.counts = np.full(frames, atoms)


@pytest.mark.parametrize(
    ("frames", "atoms", "given", "expected"),
    [(4000, 22, None, 16), (4000, 3, None, 64), (100, 22, None, 2), (40, 3000, None, 1), (4000, 22, 5, 5)],
)
def test_batches_have_few_atoms_and_an_epoch_many_steps(frames, atoms, given, expected):
    found = fit.batch_size_of(Sizes(frames, atoms), np.arange(frames), DistillSettings(batch_size=given), CPU)
    assert found == expected


def test_epochs_fill_the_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "seconds_of_a_step", lambda config, folder: 0.01)
    parts = {"train": np.arange(1600)}
    found = fit.choose(MODEL, tmp_path, DistillSettings(minutes=2.0), CPU, Sizes(1600, 22), parts)
    assert found == {"batch_size": 16, "epochs": int(120 * TRAINING), "steps": 100, "seconds_of_a_step": 0.01}
    given = fit.choose(MODEL, tmp_path, DistillSettings(epochs=3), CPU, Sizes(1600, 22), parts)
    assert given == {"batch_size": 16, "epochs": 3, "steps": 100, "seconds_of_a_step": None}


def test_the_first_step_of_each_size_does_not_count(tmp_path, monkeypatch):
    """A GPU captures a step for every size of a batch: an estimate with the captures gave a training of seconds."""
    seen = set()

    def step(size):
        time.sleep(0.002 if size in seen else 0.2)
        seen.add(size)

    trainer = SimpleNamespace(
        train=SimpleNamespace(epoch=lambda *_: range(20)), step=step, potential=SimpleNamespace(device=CPU)
    )
    monkeypatch.setattr(fit, "open_trainer", lambda config: contextlib.nullcontext(trainer))
    config = fit.config_of(MODEL, tmp_path, DistillSettings(), CPU, 8, 1, steps=20)
    assert 0.002 <= fit.seconds_of_a_step(config, tmp_path) < 0.05


@pytest.mark.parametrize(("epochs", "decay"), [(1, 0.0), (10, 0.9), (10_000, 0.999)])
def test_the_average_of_weights_is_over_a_part_of_the_steps(tmp_path, epochs, decay):
    config = fit.config_of(MODEL, tmp_path, DistillSettings(seed=3, learning_rate=0.01), CPU, 8, epochs, steps=50)
    assert config.optimizer.ema_decay == pytest.approx(decay)
    assert config.optimizer.learning_rate == 0.01
    assert config.training.seed == 3
    assert config.model.num_channels == 4
    assert config.training.device == "cpu"
    assert not config.output.report
