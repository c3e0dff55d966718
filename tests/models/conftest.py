"""What tests of models share."""

import pytest

from torchmdx.models.compiled import forms
from torchmdx.models.compiled.build import library


@pytest.fixture(params=["C", "torch"])
def kernels_or_torch(request, monkeypatch):
    """On a CPU: by kernels in C, or written out in torch."""
    if request.param == "torch":
        monkeypatch.setattr(forms, "serves", lambda *tensors: False)
    elif library() is None:
        pytest.skip("needs a C compiler")
