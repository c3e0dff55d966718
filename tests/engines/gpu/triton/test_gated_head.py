"""The kernels of a gated head against torch's derivatives."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from torch.nn.functional import silu

from torchmdx.engines import ops

CHANNELS, ATOMS = 32, 21
OPTIONS = dict(ROWS=16, COLUMNS=32, STEP=16)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert float((found.cpu().double() - wanted).norm() / wanted.norm()) < 1e-6


@needs_kernels
@pytest.mark.parametrize("back", [False, True])
def test_both_halves_are_multiplied_each_with_its_matrix(back):
    from torchmdx.engines.gpu.triton import gated_head
    from torchmdx.engines.gpu.triton.tf32_product import Split

    x, matrices = random(ATOMS, 2, CHANNELS), random(2, CHANNELS, CHANNELS) / 6
    side = random(ATOMS, 2, CHANNELS) if back else random(2, CHANNELS)
    split = Split.of(matrices.float().to(DEVICE))
    out = torch.full((ATOMS, 2, CHANNELS), float("nan"), device=DEVICE)
    gated_head.multiply_halves[(2, 1, 2)](
        x.float().to(DEVICE), split.big, split.small, side.float().to(DEVICE), out, ATOMS, CHANNELS=CHANNELS,
        ACTIVATION="silu", BACK=back, **OPTIONS,
    )  # fmt: skip
    if back:
        assert_near(out, torch.einsum("nhk,hck->nhc", x, matrices) * ops.slope(side))
    else:
        assert_near(out, torch.einsum("nhk,hck->nhc", silu(x), matrices) + side)


@needs_kernels
@pytest.mark.parametrize("gradient", [False, True])
def test_energies_and_their_gradient(gradient):
    from torchmdx.engines.gpu.triton import gated_head

    z, last = random(ATOMS, 2, CHANNELS).requires_grad_(), random(2, CHANNELS) / 3
    constants, references = torch.tensor([1.7, -0.3, 0.2], dtype=torch.float64), random(9)
    numbers = torch.arange(ATOMS) % 9
    value, opening = (silu(z) * last).sum(-1).unbind(1)
    energies = (value + constants[1]) * torch.sigmoid(opening + constants[2]) * constants[0] + references[numbers]
    (wanted,) = torch.autograd.grad(energies.sum(), z)
    held = z.detach().float().to(DEVICE)
    found = torch.full((ATOMS,), float("nan"), dtype=torch.float64, device=DEVICE)
    gated_head.gated_energies[(2,)](
        held, last.float().to(DEVICE), constants.to(DEVICE), references.to(DEVICE), numbers.to(DEVICE), found, None,
        ATOMS, CHANNELS=CHANNELS, ATOMS=16, ACTIVATION="silu", GRADIENT=gradient, INPUT_WIDTH=0,
    )  # fmt: skip
    assert_near(found, energies.detach())
    assert_near(held, wanted if gradient else z.detach())
