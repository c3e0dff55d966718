import pytest
import torch

from torchmdx import Ensemble, Potential, TensorNet2Config, TensorNetConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.step.domain_reach import num_hops, reach, why_not


def potential(layers=1, cutoff=3.0, priors=(), kind=TensorNetConfig):
    torch.manual_seed(0)
    return Potential(kind(num_channels=8, num_layers=layers, num_radial=4, cutoff=cutoff), list(priors))


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_each_layer_and_the_embedding_gather_from_neighbours(layers):
    found = potential(layers)
    assert (num_hops(found), reach(found)) == (layers + 1, 3.0 * (layers + 1))
    assert why_not(found) is None


def test_a_prior_may_see_farther_than_the_network():
    assert reach(potential(0, priors=[ZBLConfig(cutoff=5.5)])) == 5.5


def test_the_farthest_member_counts():
    assert reach(Ensemble([potential(0), potential(1)])) == 6.0


def test_what_cannot_be_divided_says_why():
    assert why_not(potential(kind=TensorNet2Config)) == "a TensorNet2 conserves the charges of the whole system"
