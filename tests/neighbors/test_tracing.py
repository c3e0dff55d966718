"""torch.compile and torch.export trace through a search, and gradients flow through its edges, twice."""

import numpy as np
import pytest
import torch
from checks import TRITON, backends, batch_of

from torchmdx.neighbors.search import EdgeSearch

CELL = np.array([[6.0, 0.1, 0.0], [0.7, 5.9, -0.2], [-0.5, 0.9, 6.3]])
LIQUID = [(np.random.default_rng(0).random((12, 3)) @ CELL, CELL, (True, True, True))]


class Attraction(torch.nn.Module):
    """A model that searches: the sum of exp(-r) over its edges."""

    def __init__(self, backend):
        super().__init__()
        self.batch = batch_of(LIQUID, backend)
        self.search = EdgeSearch(3.0, backend=backend)
        self.search.allocate(self.batch)

    def forward(self, positions, cell):
        edges = self.search.update(positions, cell)
        vectors = edges.vectors(positions, cell, self.batch.system_index)
        return torch.exp(-torch.linalg.vector_norm(vectors, dim=1)).sum()


@pytest.mark.nightly_for("vesin")
@pytest.mark.parametrize("backend", backends("vesin", *TRITON))
def test_compiled_in_one_graph_it_gives_the_same_energy(backend):
    model = Attraction(backend)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for moved in (0.0, 0.4):
        positions = (model.batch.positions * (1 + moved)).requires_grad_()
        results = []
        for way in (compiled, model):  # a gradient is taken before the next update overwrites the edges
            energy = way(positions, model.batch.cell)
            results.append((energy.detach(), *torch.autograd.grad(energy, positions)))
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", backends("vesin", *TRITON))
def test_exported_it_gives_the_same_energy(backend):
    model = Attraction(backend)
    inputs = (model.batch.positions, model.batch.cell)
    exported = torch.export.export(model, inputs)
    torch.testing.assert_close(exported.module()(*inputs), model(*inputs))


@pytest.mark.parametrize("backend", backends("vesin", "cell_list", "brute_force", *TRITON))
def test_gradients_flow_to_positions_and_cell_twice(backend):
    batch = batch_of([(LIQUID[0][0][:4], *LIQUID[0][1:])], backend)
    edges = EdgeSearch(3.0, backend=backend).allocate(batch)

    def energy(positions, cell):
        vectors = edges.vectors(positions, cell, batch.system_index)
        return torch.exp(-torch.linalg.vector_norm(vectors, dim=1)).sum()

    inputs = (batch.positions.clone().requires_grad_(), batch.cell.clone().requires_grad_())
    assert torch.autograd.gradcheck(energy, inputs)
    assert torch.autograd.gradgradcheck(energy, inputs)


def test_a_gradient_after_the_next_update_is_refused_not_wrong():
    model = Attraction("vesin")
    positions = model.batch.positions.clone().requires_grad_()
    energy = model(positions, model.batch.cell)
    model(positions, model.batch.cell)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        energy.backward()
