"""What a wrapped module is given."""

import copy

import pytest
import torch

from torchmdx import Batch, System
from torchmdx.models.wrapped import ARGUMENTS, WrappedConfig, WrappedNetwork, arguments_of
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import from_lists

CONFIG = WrappedConfig(name="Recorder", cutoff=3.0, elements=(8, 1))


class Recorder(torch.nn.Module):
    """Asks for everything, and keeps it."""

    def __init__(self):
        super().__init__()
        self.given = {}

    def forward(
        self, vectors, edge_index, positions, shifts, atomic_numbers, system_index, num_systems, charge, more=None
    ):
        given = dict(locals())
        del given["self"], given["more"]
        self.given = given
        return vectors.new_zeros(len(atomic_numbers), 1)


@pytest.fixture
def batch():
    water = System.create([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], [8, 1, 1], charge=-1)
    chain = System.create([[0.0, 0, 0]], [8], cell=[[2.5, 0, 0], [0, 9, 0], [0, 0, 9]], pbc=[True, False, False])
    return Batch.from_systems([water, chain])


def given_for(batch, dtype=torch.float64):
    found = brute_force(batch, 3.0).trimmed()
    edges = from_lists(found.target, found.source, found.shifts, batch.num_atoms, len(found.target) + 3)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index).to(dtype)
    network = WrappedNetwork(CONFIG, Recorder()).to(dtype)
    network(edges, vectors, batch)
    return network.module.given, vectors, len(found.target)


def test_every_argument(batch):
    given, vectors, count = given_for(batch)
    assert set(given) == set(ARGUMENTS) == set(arguments_of(Recorder()))
    source, target = given["edge_index"]
    assert given["edge_index"].dtype == torch.int64
    moved = given["positions"][source] - given["positions"][target] + given["shifts"]
    torch.testing.assert_close(moved, given["vectors"])
    torch.testing.assert_close(given["vectors"][:count], vectors[:count])
    bonded = (source[:count] == 1) & (target[:count] == 0)
    torch.testing.assert_close(vectors[:count][bonded][0], torch.tensor([0.96, 0, 0], dtype=torch.float64))
    assert sorted(vectors[:count][target[:count] == 3][:, 0].tolist()) == [-2.5, 2.5]  # its own images
    assert given["system_index"].tolist() == [0, 0, 0, 1]
    assert (given["num_systems"], given["charge"].tolist()) == (2, [-1.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_slots_are_as_long_as_the_cutoff(batch, dtype):
    given, _, count = given_for(batch, dtype)
    torch.testing.assert_close(given["vectors"][count:].norm(dim=-1), torch.full((3,), 3.0, dtype=dtype))
    assert given["vectors"].dtype == given["charge"].dtype == dtype


def test_pairs_beyond_the_cutoff_have_no_gradient(batch):
    edges = brute_force(batch, 5.1).trimmed()  # the second images of the chain are 5 Å away
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index).clone().requires_grad_(True)
    network = WrappedNetwork(CONFIG, Recorder())
    near = network._within(vectors)
    (gradient,) = torch.autograd.grad(near.sum(), vectors)
    beyond = vectors.detach().norm(dim=-1) >= 3.0
    assert beyond.any()
    assert (gradient[beyond] == 0).all()
    assert (gradient[~beyond] == 1).all()


def test_copies_do_not_share_weights():
    class Weighted(torch.nn.Linear):
        def forward(self, vectors):
            return super().forward(vectors)

    network = WrappedNetwork(CONFIG, Weighted(3, 1))
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.module.weight.fill_(7.0)
    assert not torch.equal(network.module.weight, other.module.weight)


def test_a_configuration_from_json_has_tuples():
    assert WrappedConfig(name="a", cutoff=1.0, elements=(1, 9)).max_z == 9
