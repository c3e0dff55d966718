"""What tests of models share."""

import pytest
import torch

from torchmdx.engines.cpu import pair_forms
from torchmdx.engines.cpu.build import library


@pytest.fixture(params=["C", "torch"])
def kernels_or_torch(request, monkeypatch):
    """On a CPU: by kernels in C, or written out in torch."""
    if request.param == "torch":
        monkeypatch.setattr(pair_forms, "serves", lambda *tensors: False)
    elif library() is None:
        pytest.skip("needs a C compiler")


@pytest.fixture
def own_threads():
    """torch's number of threads may be changed: it is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
