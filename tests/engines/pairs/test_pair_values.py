"""Directions, radial basis and cutoff function of pairs where there are no kernels for them."""

import torch
from pair_lists import CUTOFF

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.pairs import pair_values
from torchmdx.models.cutoff import cosine_cutoff


def network(**settings):
    settings = dict(num_channels=4, num_radial=5, num_layers=1, cutoff=CUTOFF) | settings
    return Potential(TensorNetConfig(**settings)).double().network


def test_rows_are_pairs_and_then_an_atom_with_itself():
    vectors = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors[-1] = 1e6
    distance = vectors.norm(dim=1)
    for own in (True, False):
        model = network(self_message=own)
        assert pair_values.pair_kernels_of(model, vectors) is None
        directions, radial, envelope = pair_values.pair_values(model, vectors)
        assert (directions.shape, radial.shape, envelope.shape) == ((7, 9), (7, 5), (7, 1))
        torch.testing.assert_close(directions[:-1, 1:4], vectors / distance[:, None])
        assert directions[-1].tolist() == [1.0] + [0.0] * 8
        torch.testing.assert_close(envelope[:-1, 0], cosine_cutoff(distance, CUTOFF))
        assert float(envelope[-1]) == float(own)
        torch.testing.assert_close(radial[:-1], model.basis(distance))


def test_other_bases_and_trained_ones_have_no_kernels():
    assert pair_values.has_kernels(network())
    assert not pair_values.has_kernels(network(radial_basis="gauss"))
    assert not pair_values.has_kernels(network(trainable_basis=True))
