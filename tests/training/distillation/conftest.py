"""What tests of distillations share."""

import pytest
import torch

import torchmdx


@pytest.fixture(scope="session")
def organic():
    return torchmdx.load("organic-1", dtype=torch.float32)
