"""Which kernels of CUDA C++ are compiled ahead; nothing is compiled here."""

import inspect

import pytest

pytest.importorskip("triton")

import torch

from torchmdx.engines.gpu import compile_ahead as module
from torchmdx.engines.plan import MACHINES, Workload
from torchmdx.engines.plan.kernels import plan_kernels
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config


@pytest.mark.parametrize(
    ("kind", "atoms", "expected"),
    [
        ("TensorNet", 22, ["one-launch"]),
        ("TensorNet", 166, []),
        ("TensorNet", 2489, ["atom-tiles", "messages"]),
        ("TensorNet2", 22, ["charged-cluster"]),
        ("TensorNet2", 2489, ["edge-maps"]),
    ],
)
def test_what_the_plan_needs_is_compiled(kind, atoms, expected, monkeypatch):
    begun = {}
    monkeypatch.setattr(module, "ahead", begun.__setitem__)
    config = TensorNet2Config(num_layers=1) if kind == "TensorNet2" else TensorNetConfig()
    work = Workload(atoms=atoms, capacity=40 * atoms, elements=4, alone=True)
    plan = plan_kernels(kind, config, work, MACHINES["H100"])
    module.compile_ahead(plan, config, atoms, work.slots, torch.device("cuda", 0), stress=False, uncertainty=True)
    assert list(begun) == expected
    for call in begun.values():  # errors ahead of use are only logged
        inspect.signature(call.func).bind(*call.args, **call.keywords)
