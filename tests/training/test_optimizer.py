"""The optimizer step as one kernel: agreement with torch, skipped steps, number of launches."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchmdx.training.config import OptimizerSection
from torchmdx.training.optimizer import AdamW, FlatParameters

# Some roundings; in float64 of 1 - 0.999^t, which loses three digits by cancelling.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


def make(dtype=torch.float64, device="cpu", **settings) -> AdamW:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30), nn.Linear(30, 3)).to(device, dtype)
    section = OptimizerSection.model_validate({"weight_decay": 0.1, "clip_norm": 1.0, "ema_decay": 0.9} | settings)
    optimizer = AdamW(FlatParameters(list(net.named_parameters())), net, section)
    optimizer.learning_rate.fill_(0.01)
    return optimizer


def step(optimizer: AdamW, number: int, good: bool = True, spoil: float | None = None) -> float:
    gradient = optimizer.flat.gradient
    made = torch.randn(len(gradient), dtype=torch.float64, generator=torch.Generator().manual_seed(number))
    gradient.copy_(made * (0.1 if number % 2 else 0.001))  # some are cut, some are not
    if spoil is not None:
        gradient[7] = spoil
    return float(optimizer.apply(torch.tensor(good, device=gradient.device)))


class Operations(TorchDispatchMode):
    """Counts operations that launch a kernel: all except views and allocations."""

    VIEWS = ("view", "select", "slice", "as_strided", "detach", "empty", "empty_like", "alias", "expand", "t")

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        if name not in self.VIEWS:
            self.seen.append(name)
        return function(*arguments, **(options or {}))


def test_a_step_is_one_kernel_and_two_other_launches(monkeypatch):
    pytest.importorskip("triton")
    from torchmdx.training import optimizer_kernel

    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.append(grid)

    monkeypatch.setattr(optimizer_kernel, "_step", Kernel())
    plain, fused = make(), make()
    fused.fused = True
    step(fused, 0)  # the first makes a table of settings
    launched.clear()
    good = torch.tensor(True)
    with Operations() as many:
        plain.apply(good)
    with Operations() as few:
        fused.apply(good)
    assert len(launched) == 1
    assert few.seen == ["linalg_vector_norm", "add_"]
    assert len(many.seen) > 25


def require_same(optimizer: AdamW, plain: AdamW) -> None:
    tolerance = TOLERANCE[plain.flat.values.dtype]
    for name, expected in plain.state().items():
        found = optimizer.state()[name].cpu()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 0.01, msg=name)


@pytest.mark.interpreter
class TestKernel:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("settings", [{}, {"clip_norm": None, "ema_decay": 0.0, "beta1": 0.0}])
    def test_steps_match_torch(self, dtype, settings):
        plain, fused = make(dtype, **settings), make(dtype, **settings)
        fused.fused = True
        for number in range(6):
            norms = [step(optimizer, number) for optimizer in (plain, fused)]
            assert norms[0] == norms[1]
            require_same(fused, plain)
        assert fused.steps == 6

    @pytest.mark.parametrize("spoil", ["flag", "nan", "inf"])
    def test_a_skipped_step_changes_nothing(self, spoil):
        optimizer = make()
        optimizer.fused = True
        step(optimizer, 0)
        before = {name: value.clone() for name, value in optimizer.state().items()}
        step(optimizer, 1, spoil != "flag", None if spoil == "flag" else float(spoil))
        assert all(torch.equal(value, before[name]) for name, value in optimizer.state().items())
        step(optimizer, 2)
        assert optimizer.steps == 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_on_a_gpu_match_the_cpu(dtype):
    plain, fused = make(dtype), make(dtype, "cuda")
    assert fused.fused
    for number in range(6):
        for optimizer in (plain, fused):
            step(optimizer, number, good=number != 3)
    require_same(fused, plain)
