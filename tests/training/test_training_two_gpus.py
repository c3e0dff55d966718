"""Training on the second GPU: the command, captured and launched steps, alternation with the first GPU."""

import json

import made_up
import numpy as np
import pytest
import torch

from torchmdx import Potential, TensorNetConfig, load
from torchmdx.commands.cli import main
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.report.history import read_table
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import TrainStep

pytestmark = [pytest.mark.gpu, pytest.mark.two_gpus]
GPUS = ("cuda:0", "cuda:1")
SIZES = dict(num_channels=32, num_layers=2, num_radial=8, cutoff=4.0)
POTENTIALS = {
    "tensornet": lambda: Potential(TensorNetConfig(**SIZES)),
    "with a prior": lambda: Potential(TensorNetConfig(**SIZES), [ZBLConfig(cutoff=3.0)]),
    "tensornet2": lambda: Potential(TensorNet2Config(num_charges=4, **SIZES), [CoulombConfig(cutoff=6.0)]),
}


@pytest.fixture(autouse=True)
def the_current_gpu_stays():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


@pytest.fixture
def config(tmp_path):
    made_up.store(tmp_path / "st", 60)
    return made_up.config_file(tmp_path, tmp_path / "st")


def make_step(kind: str, device: str, record: bool) -> TrainStep:
    torch.manual_seed(2)
    step = TrainStep(POTENTIALS[kind]().to(device), LossSection(), OptimizerSection(), record=record)
    step.set_rates(1e-3, (1.0, 1.0, 0.0))
    return step


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("kind", POTENTIALS)
def test_alternating_steps_on_both_gpus(tmp_path, kind, record):
    store = made_up.store(tmp_path / "st", 8)
    frames = store.gather(np.arange(8))
    labelled = label(frames, np.arange(8), num_atoms=80, num_systems=9, cutoff=4.0, dtype=torch.float32)
    steps = [make_step(kind, device, record) for device in GPUS]
    batches = [labelled.to(torch.device(device)) for device in GPUS]
    rows = np.array([[step(batch).cpu().numpy() for step, batch in zip(steps, batches, strict=True)] for _ in range(8)])
    np.testing.assert_allclose(rows[:, 1], rows[:, 0], rtol=1e-4, atol=1e-6)
    assert rows[-1, 1, 0] < rows[0, 1, 0]
    found = [step.evaluate(batch).cpu().numpy() for step, batch in zip(steps, batches, strict=True)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-6)
    if record:
        assert steps[1].graphs.num_replays == steps[0].graphs.num_replays == 6


@pytest.mark.parametrize("record", ["true", "false"])
def test_training_on_either_gpu(config, tmp_path, record):
    for device in ("cpu", *GPUS):
        changes = ["--training.device", device, "--training.record", record, "--training.precision", "float64"]
        directory = tmp_path / device.replace(":", "-")
        assert main(["train", str(config), "--output.directory", str(directory), *changes]) == 0
    tables = [read_table(tmp_path / name / "epochs.csv") for name in ("cpu", "cuda-0", "cuda-1")]
    for table in tables[:2]:
        np.testing.assert_allclose(tables[2]["validation_loss"], table["validation_loss"], rtol=1e-6)
    weights = [load(tmp_path / name / "last.safetensors").state_dict() for name in ("cpu", "cuda-1")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-6, atol=1e-8)
    environment = json.loads((tmp_path / "cuda-1" / "environment.json").read_text())
    assert environment["device"] == torch.cuda.get_device_name(1)


def test_training_resumes_on_another_gpu(config, tmp_path):
    words = ["train", str(config), "--output.directory", str(tmp_path / "run"), "--training.precision", "float64"]
    assert main([*words, "--training.device", "cuda:0", "--training.epochs", "2"]) == 0
    assert main([*words, "--training.device", "cuda:1", "--training.epochs", "4", "--resume"]) == 0
    assert np.isfinite(read_table(tmp_path / "run" / "epochs.csv")["validation_loss"]).all()
    assert len(read_table(tmp_path / "run" / "epochs.csv")["epoch"]) == 4


def test_an_unavailable_gpu_is_rejected(config, tmp_path, capsys):
    count = torch.cuda.device_count()
    words = ["train", str(config), "--output.directory", str(tmp_path / "run")]
    assert main([*words, "--training.device", f"cuda:{count}"]) == 2
    assert f"training.device 'cuda:{count}' is not available: torch sees {count} CUDA GPUs" in capsys.readouterr().err
