import math

import numpy as np
import torch

from torchmdx.models.cutoff import cosine_cutoff

CUTOFF = 4.5


def test_the_cutoff_function_goes_from_one_to_zero():
    r = torch.tensor([0.0, CUTOFF / 3, CUTOFF / 2, CUTOFF, CUTOFF + 1, 1e6], dtype=torch.float64)
    np.testing.assert_allclose(cosine_cutoff(r, CUTOFF), [1, 0.75, 0.5, 0, 0, 0], atol=1e-15)
    assert (cosine_cutoff(r, CUTOFF)[3:] == 0).all()


def test_the_cutoff_function_ends_with_slope_zero():
    r = torch.tensor([CUTOFF / 2, CUTOFF - 1e-6, CUTOFF, CUTOFF + 1, 1e6], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(cosine_cutoff(r, CUTOFF).sum(), r)
    np.testing.assert_allclose(slope, [-math.pi / CUTOFF / 2, 0, 0, 0, 0], atol=1e-6)
