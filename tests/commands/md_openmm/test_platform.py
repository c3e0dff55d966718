"""OpenMM uses the device of the network."""

import pytest
import torch

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from torchmdx.commands.md_openmm.platform import _properties
from torchmdx.dynamics.run.settings import PotentialSettings


class Platform:
    def getName(self):
        return "CUDA"

    def getPropertyNames(self):
        return ("Precision", "DeviceIndex")


@pytest.mark.parametrize(
    ("device", "current", "index"), [("cuda:1", 0, "1"), ("cuda:0", 1, "0"), ("cuda", 1, "1"), ("cuda", 0, "0")]
)
def test_the_gpu_index_is_that_of_the_network(monkeypatch, device, current, index):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    nothing = dict.fromkeys(PotentialSettings.__dataclass_fields__)
    potential_settings = PotentialSettings(**nothing | {"device": device, "precision": "float32"})
    assert _properties(Platform(), potential_settings) == {"Precision": "mixed", "DeviceIndex": index}
