"""A small potential for the runs."""

import pytest
import torch

import torchmdx
from torchmdx import Potential, TensorNetConfig


@pytest.fixture
def model(tmp_path) -> Potential:
    """A small potential with trustworthy digits in float64, saved in the folder of the run."""
    torch.manual_seed(0)
    made = Potential(TensorNetConfig(num_channels=16, num_radial=8, num_layers=1, cutoff=3.0)).double()
    made.shift.fill_(3.0)
    made.reference_energies[:9] = torch.linspace(-20, 5, 9)
    torchmdx.save(made, tmp_path / "model.safetensors")
    return made
