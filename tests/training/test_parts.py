"""Loss functions, AdamW, averages and schedules, compared with formulas and with torch."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.models.model_card import Card
from torchmdx.training.config import OptimizerSection, ScheduleSection
from torchmdx.training.loss import error_function, term_weights, weighted_sum
from torchmdx.training.loss_section import LossSection, TermSection
from torchmdx.training.optimizer import AdamW, FlatParameters, decays
from torchmdx.training.prepare import card_of, tuned_card
from torchmdx.training.schedule import Schedule


def test_error_functions():
    errors = torch.tensor([-3.0, -0.4, 0.0, 0.5, 2.0], dtype=torch.float64)
    assert torch.equal(error_function(errors, TermSection(function="mse")), errors**2)
    assert torch.equal(error_function(errors, TermSection(function="mae")), errors.abs())
    expected = torch.nn.functional.huber_loss(errors, torch.zeros(5).double(), reduction="none", delta=0.5)
    torch.testing.assert_close(error_function(errors, TermSection(function="huber", delta=0.5)), expected)


def test_missing_labels_have_no_weight_even_if_the_prediction_is_nan():
    predicted = torch.tensor([[1.0, 2.0], [torch.nan, torch.nan]], requires_grad=True)
    loss, error, square = weighted_sum(predicted - 0.5, torch.tensor([0.25, 0.0]), TermSection())
    assert loss.item() == pytest.approx(0.25 * (0.25 + 2.25))
    assert error.item() == pytest.approx(0.25 * 2.0)
    assert square.item() == pytest.approx(0.25 * (0.25 + 2.25))
    loss.backward()
    assert torch.equal(predicted.grad, torch.tensor([[0.25, 0.75], [0.0, 0.0]]))


def test_weights_change_between_change_from_and_change_to():
    loss = LossSection.model_validate(
        {
            "energy": {"weight": 1.0, "final_weight": 5.0},
            "forces": {"weight": 2.0},
            "change_from": 0.5,
            "change_to": 0.75,
        }
    )
    assert [term_weights(loss, share)[0] for share in (0.0, 0.5, 0.625, 0.75, 1.0)] == [1, 1, 3, 5, 5]
    assert {term_weights(loss, share)[1:] for share in (0.0, 0.6, 1.0)} == {(2.0, 0.0, 0.0, 0.0)}
    sudden = loss.model_copy(update={"change_to": 0.5})
    assert [term_weights(sudden, share)[0] for share in (0.49, 0.5)] == [1, 5]


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


def test_cosine_with_warm_up():
    rates = [Schedule(ScheduleSection(warmup_steps=4, final_factor=0.1), 2.0, 104).rate(step) for step in range(105)]
    np.testing.assert_allclose(rates[:5], [0.4, 0.8, 1.2, 1.6, 2.0])
    assert rates[54] == pytest.approx(1.1)
    assert rates[104] == pytest.approx(0.2)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert Schedule(ScheduleSection(name="constant", warmup_steps=0), 2.0, 10).rate(7) == 2.0


def test_plateau_waits_then_reduces_the_rate_and_saves_its_state():
    section = ScheduleSection(name="plateau", warmup_steps=0, plateau_patience=2, plateau_factor=0.5, final_factor=0.2)
    schedule = Schedule(section, 1.0, 100)
    rates = []
    for loss in (5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.5, 3.5, 3.5):
        schedule.validated(loss)
        other = Schedule(section, 1.0, 100)
        other.load_state(schedule.state())
        rates.append(other.rate(50))
    assert rates == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2]


def test_card_of_a_new_potential(tmp_path):
    """Only training frames count. Neutral OH has an odd number of electrons."""
    place = [[0.0, 0, 0], [1.2, 0, 0]]
    with StoreWriter(tmp_path / "data") as writer:
        for index, (numbers, charge) in enumerate([([6, 6], 0.0), ([1, 1], 0.0), ([8, 1], 0.0), ([8, 1], -1.0)]):
            frame = Frames.single(
                np.array(place), np.array(numbers), energy=0.0, forces=np.zeros((2, 3)), charge=charge
            )
            writer.add(frame, "made.xyz", index)
    store = Store.open(tmp_path / "data")
    assert card_of(store, np.array([0, 1])) == Card(elements=(1, 6), charges=(0.0,), closed_shell=True, periodic=False)
    assert card_of(store, np.array([3, 1])) == Card(
        elements=(1, 8), charges=(-1.0, 0.0), closed_shell=True, periodic=False
    )
    assert card_of(store, np.arange(4)) == Card(
        elements=(1, 6, 8), charges=(-1.0, 0.0), closed_shell=False, periodic=False
    )


def test_card_of_a_fine_tuned_potential():
    base = Card(name="organic-1", licence="MIT", elements=(1, 6), charges=(0,), closed_shell=True)
    more = Card(elements=(1, 14), charges=(0, 1), closed_shell=True)
    assert tuned_card(base, more) == Card(
        description="fine-tuned from organic-1", licence="MIT", elements=(1, 6, 14), charges=(0, 1), closed_shell=True
    )
    assert tuned_card(Card(), more) == Card()  # what it knew before is not known
