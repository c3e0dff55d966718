"""Launches of products with weights, against the same products in float64."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels

from torchmdx.engines import ops
from torchmdx.engines.plan.launch_sizes import ProductBlock, Tiles

ATOMS, CHANNELS = 21, 32
TILES = Tiles.choose(5000)


def products(within=None):
    from torchmdx.engines.gpu.products import ChainProducts

    class OfAtoms(ChainProducts):
        n, c, tiles, activation = ATOMS, CHANNELS, TILES, {"ACTIVATION": "silu"}

        def atoms(self, hops):
            return self.n if self.within is None else self.within[hops : hops + 1]

    made = OfAtoms()
    made.within = within
    return made


def split(*shape):
    from torchmdx.engines.gpu.triton.tf32_product import Split

    matrix = torch.randn(shape, dtype=torch.float64)
    return matrix, Split.of(matrix.float().to(DEVICE))


def filled(*shape):
    return torch.full(shape, torch.nan, device=DEVICE)


def assert_near(found, expected):
    assert (found.cpu() - expected).norm() < 2e-6 * expected.norm()


@needs_kernels
@pytest.mark.parametrize("num_within", [None, 7])
def test_components_take_the_matrix_of_their_part(num_within):
    within = None if num_within is None else torch.tensor([3, num_within], dtype=torch.int32, device=DEVICE)
    matrices, parts = split(3, CHANNELS, CHANNELS)
    x = torch.randn(ATOMS, 9, CHANNELS, dtype=torch.float64)
    out = filled(ATOMS, 9, CHANNELS)
    products(within)._multiply_parts(x.float().to(DEVICE), parts, out, hops=1)
    of_component = matrices[[0, 1, 1, 1, 2, 2, 2, 2, 2]]
    expected = torch.einsum("nkc,koc->nko", x.float().double(), of_component.float().double())
    count = ATOMS if num_within is None else num_within
    assert_near(out[:count], expected[:count])


@needs_kernels
@pytest.mark.parametrize("after", ["bias", "scale", "slope"])
def test_maps_of_atoms(after):
    matrix, parts = split(2 * CHANNELS, CHANNELS)
    x = torch.randn(ATOMS, CHANNELS, dtype=torch.float64).float().double()
    side = (
        torch.randn((ATOMS, 2 * CHANNELS) if after == "slope" else 2 * CHANNELS, dtype=torch.float64).float().double()
    )
    out = filled(ATOMS, 2 * CHANNELS)
    products()._multiply(x.float().to(DEVICE), parts, side.float().to(DEVICE), out, after)
    matrix, slope = matrix.float().double(), ops.slope(side)
    expected = {
        "bias": torch.nn.functional.silu(x) @ matrix.T + side,
        "scale": x @ matrix.T * side,
        "slope": x @ matrix.T * slope,
    }
    assert_near(out, expected[after])


def test_blocks_divide_the_columns_of_a_product():
    options = ProductBlock(columns=128, step=32).options(inner=48, width=96)
    assert options["COLUMNS"] == 32
    assert options["STEP"] == 16
