"""Functions of the tensors of one atom, composed of forms, against the algebra of the model."""

import pytest
import torch
from atom_algebra import ATOMS, CHANNELS, FUNCTIONS, by_matrices, derivatives, evaluated, random

from torchmdx.engines.pairs import atom_functions


@pytest.mark.parametrize("has_factor", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_composed_functions_have_the_derivatives_of_the_definition(monkeypatch, name, has_factor):
    monkeypatch.setattr(atom_functions, "atom_kernels_of", lambda x: None)
    inputs = [random(ATOMS, 9, CHANNELS, seed=k) for k in range(FUNCTIONS[name])]
    factor = random(ATOMS, 1, seed=9).detach() if has_factor else None
    found = derivatives(lambda given: evaluated(name, given, factor), inputs, 2)
    wanted = derivatives(lambda given: by_matrices(name, given, factor), inputs, 2)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
