import numpy as np
import oracles
import pytest
import torch

from torchmdx.models.activations import ACTIVATIONS


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_agree_with_their_formulas(name):
    x = torch.tensor([-3.0, -0.2, 0.0, 0.5, 4.0], dtype=torch.float64)
    wanted = [oracles.ACTIVATIONS[name](v) for v in x.tolist()]
    np.testing.assert_allclose(ACTIVATIONS[name]()(x), wanted, rtol=1e-12, atol=1e-15)
