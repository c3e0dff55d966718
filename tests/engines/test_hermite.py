"""Polynomials with given values and slopes: of a function that they can represent, and of one that they cannot."""

import numpy as np
import pytest
import torch

from torchmdx.engines.hermite import FIFTH, NINTH


@pytest.mark.parametrize("polynomial", [FIFTH, NINTH], ids=["fifth", "ninth"])
def test_values_and_slopes_at_nodes_give_the_polynomial(polynomial):
    given = np.polynomial.Polynomial(np.random.default_rng(1).normal(size=polynomial.degree + 1))
    nodes = np.array(polynomial.nodes) - polynomial.origin
    conditions = np.stack([given(nodes), given.deriv()(nodes)], 1).ravel()
    found = (polynomial.solve @ torch.from_numpy(conditions)).numpy()
    np.testing.assert_allclose(found, given.coef, rtol=0, atol=1e-9)


def test_the_ninth_degree_loses_little_to_rounding():
    nodes = np.array(NINTH.nodes) - NINTH.origin
    conditions = np.stack([np.exp(nodes / 9), np.exp(nodes / 9) / 9], 1).ravel()
    t = np.linspace(0, 1, 101) - NINTH.origin
    found = np.polynomial.Polynomial((NINTH.solve @ torch.from_numpy(conditions)).numpy())
    np.testing.assert_allclose(found(t), np.exp(t / 9), rtol=1e-14)
    np.testing.assert_allclose(found.deriv()(t), np.exp(t / 9) / 9, rtol=1e-12)
