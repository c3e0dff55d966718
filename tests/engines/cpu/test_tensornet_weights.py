"""The weights that C reads."""

import pytest
import torch
from torch import nn

from torchmdx.engines.cpu.tensornet_weights import TensorNetWeights, packed, padded_size
from torchmdx.engines.filter_table import table_of
from torchmdx.engines.plan import Network, machine_named
from torchmdx.engines.plan.decide import why_not_compiled


def test_sizes_are_whole_slices():
    assert [padded_size(count) for count in (1, 16, 17, 128)] == [16, 16, 32, 128]


def test_a_matrix_is_packed_by_slices_of_outputs():
    matrix = torch.arange(32.0 * 48).reshape(32, 48)
    found = packed(matrix)
    assert found.shape == (2, 48, 16)
    assert float(found[1, 5, 3]) == float(matrix[19, 5])


def test_the_structure_has_the_potential_s_numbers(make_potential):
    potential = make_potential(torch.float32, num_channels=24, num_head_layers=1, activation="mish", group="SO(3)")
    potential.requires_grad_()
    model = TensorNetWeights(potential, table_of(potential.network)).model
    assert (model.slices, model.width, model.layers) == (2, 24, potential.config.num_layers)
    assert (model.head_slices, model.head_layers, model.activation, model.reflections) == (1, 2, 4, 0)
    assert model.scale == pytest.approx(1.7)
    assert model.shift == pytest.approx(-0.3)
    assert model.cutoff == potential.config.cutoff


def test_what_the_c_code_cannot_evaluate(make_potential):
    potential = make_potential(torch.float32)
    assert why_not_compiled(Network.of(potential), machine_named("CPU")) is None
    potential.head = nn.Linear(2, 1)
    reason = why_not_compiled(Network.of(potential), machine_named("CPU"))
    assert reason == "its head must be a ScalarHead or a GatedHead, got a Linear"


def test_a_gated_head_has_two_networks(make_potential):
    potential = make_potential(
        torch.float32, head="gated", num_head_layers=1, readout_activation=False, charge_factor=False
    )
    model = TensorNetWeights(potential, table_of(potential.network)).model
    assert (model.head_networks, model.head_layers, model.readout_activation, model.charge_factor) == (2, 2, 0, 0)
    lasts = potential.head.layers[-1], potential.head.gates[-1]
    assert list(model.last_bias) == pytest.approx([float(last.bias) for last in lasts])
