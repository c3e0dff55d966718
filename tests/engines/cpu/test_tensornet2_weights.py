"""The weights of a TensorNet2 that C reads."""

import pytest
import torch

from torchmdx.engines.cpu.tensornet2_weights import TensorNet2Weights, kept_bytes
from torchmdx.engines.filter_table import RadialShares, table_of
from torchmdx.engines.plan import Network, machine_named
from torchmdx.engines.plan.decide import why_not_compiled
from torchmdx.models.charge_equilibration import LEAST_SHARE


@pytest.mark.parametrize("last", [False, True])
def test_the_structure_has_the_potential_s_numbers(make_potential, last):
    potential = make_potential(torch.float32, model="tensornet2", num_charges=17, charge_slack=1e-6)
    assert why_not_compiled(Network.of(potential), machine_named("CPU")) is None
    weights = TensorNet2Weights(potential, table_of(potential.network, RadialShares), last=last)
    charges = weights.charges
    assert (charges.count, charges.slices, charges.last) == (17, 2, last)
    assert (charges.slack, charges.least) == (1e-6, LEAST_SHARE)
    assert weights.model.charges
    assert not weights.model.charge_factor
    assert charges.equilibrations[potential.config.num_layers].epsilon == potential.network.charges[-1].norm.eps


def test_memory_of_the_slopes():
    assert kept_bytes(1000, 120, 2, 4) == 2 * 1000 * (128 + 256 + 384) * 4
