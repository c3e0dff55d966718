"""Potentials and systems of the loops on a GPU.

The folders below import stand-ins of this one, which pytest adds to the path with this file.
"""

import pytest
import torch
from interpreter import DEVICE

from torchmdx import System


@pytest.fixture
def potential32(make_potential):
    return make_potential(dtype=torch.float32).to(DEVICE)


@pytest.fixture
def systems(ethanol, cation):
    return [System.from_ase(ethanol), System.from_ase(cation)]
