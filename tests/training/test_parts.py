"""AdamW with averages of weights, compared with torch."""

import math

import pytest
import torch
from torch import nn

from torchmdx.training.config import OptimizerSection
from torchmdx.training.optimizer import AdamW, FlatParameters, decays


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.linear = nn.Embedding(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, index):
        return self.linear(self.norm(self.embedding(index)))


def make(**settings):
    torch.manual_seed(0)
    net = Net().double()
    section = OptimizerSection.model_validate(
        {"learning_rate": 0.01, "weight_decay": 0.1, "clip_norm": None, "ema_decay": 0.9} | settings
    )
    flat = FlatParameters(list(net.named_parameters()))
    optimizer = AdamW(flat, net, section)
    optimizer.learning_rate.fill_(0.01)
    return net, flat, optimizer


def gradients(net, step):
    torch.manual_seed(step)
    loss = (net(torch.tensor([0, 1, 3])) - torch.randn(3, 3).double()).square().sum()
    return torch.autograd.grad(loss, list(net.parameters()))


def test_adamw_matches_torch_and_only_linear_weights_decay():
    net, flat, optimizer = make(clip_norm=1.5)
    torch.manual_seed(0)
    reference = Net().double()
    groups = [
        {"params": [reference.linear.weight], "weight_decay": 0.1},
        {"params": [w for n, w in reference.named_parameters() if n != "linear.weight"], "weight_decay": 0.0},
    ]
    own = torch.optim.AdamW(groups, lr=0.01)
    average = [w.detach().clone() for w in reference.parameters()]
    clipped = 0
    for step in range(12):
        flat.set_gradients(gradients(net, step))
        norm = optimizer.apply(torch.tensor(True))
        for weight, gradient in zip(reference.parameters(), gradients(reference, step), strict=True):
            weight.grad = gradient
        expected = nn.utils.clip_grad_norm_(reference.parameters(), 1.5)
        own.step()
        clipped += int(expected > 1.5)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-6)  # torch adds 1e-6 to the norm
        memory = min(0.9, (2 + step) / (11 + step))
        average = [memory * a + (1 - memory) * w.detach() for a, w in zip(average, reference.parameters(), strict=True)]
    assert clipped > 0
    for got, wanted in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)
    for start, parameter, wanted in zip(flat.starts, net.parameters(), average, strict=True):
        torch.testing.assert_close(flat.view(optimizer.average, start, parameter), wanted, rtol=1e-6, atol=1e-8)
    assert decays(net, list(net.parameters())) == [False, False, False, True, False]


@pytest.mark.parametrize("spoil", ["flag", "nan", "inf"])
def test_a_skipped_step_changes_nothing(spoil):
    net, flat, optimizer = make()
    flat.set_gradients(gradients(net, 0))
    optimizer.apply(torch.tensor(True))
    before = {name: value.clone() for name, value in optimizer.state().items()}
    flat.set_gradients(gradients(net, 1))
    if spoil != "flag":
        flat.gradient[3] = float(spoil)
    norm = optimizer.apply(torch.tensor(spoil != "flag"))
    assert all(torch.equal(value, before[name]) for name, value in optimizer.state().items())
    assert math.isfinite(norm) == (spoil == "flag")


def test_without_averaging_the_average_is_the_weights():
    net, flat, optimizer = make(ema_decay=0.0)
    flat.set_gradients(gradients(net, 0))
    optimizer.apply(torch.tensor(True))
    torch.testing.assert_close(optimizer.average, flat.values, rtol=1e-14, atol=0)


def test_state_of_other_weights_is_rejected():
    _, _, optimizer = make()
    state = dict(optimizer.state(), first=torch.zeros(3))
    with pytest.raises(ValueError, match=r"first of the checkpoint must be \[\d+\] torch.float64 .*, got \[3\]"):
        optimizer.load_state(state)
