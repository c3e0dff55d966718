"""Loss functions and their weights, compared with formulas and with torch."""

import pytest
import torch

from torchmdx.training.loss import error_function, term_weights, weighted_sum
from torchmdx.training.loss_section import LossSection, TermSection


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
