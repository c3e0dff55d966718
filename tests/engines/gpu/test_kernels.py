"""Parts of the fused kernels: nine components, activations, cutoff, sums over systems."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels

from torchmdx.engines import ops
from torchmdx.engines.plan import settings
from torchmdx.models import tensors
from torchmdx.models.activations import ACTIVATIONS

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from torchmdx.engines.gpu.triton import nine, tf32_product  # noqa: E402
from torchmdx.engines.gpu.triton.activations import activate, slope  # noqa: E402
from torchmdx.engines.gpu.triton.forces import sum_systems  # noqa: E402

pytestmark = needs_kernels
ROWS, CHANNELS = 16, 16


@triton.jit
def _block(CHANNELS: tl.constexpr):
    r = tl.arange(0, 16)[:, None]
    c = tl.arange(0, CHANNELS)[None, :]
    return r * (9 * CHANNELS) + c, r * 0 == 0


@triton.jit
def square_both_ways(X, G, OUT, GX, CHANNELS: tl.constexpr):
    at, mask = _block(CHANNELS)
    x = nine.load9(X + at, mask, CHANNELS)
    g = nine.load9(G + at, mask, CHANNELS)
    nine.store9(OUT + at, nine.square(x), mask, CHANNELS)
    nine.store9(GX + at, nine.square_gradient(x, g), mask, CHANNELS)


@triton.jit
def normalise_both_ways(X, G, OUT, GX, CHANNELS: tl.constexpr):
    at, mask = _block(CHANNELS)
    x = nine.load9(X + at, mask, CHANNELS)
    g = nine.load9(G + at, mask, CHANNELS)
    inverse = 1.0 / (nine.squared_norm(x) + 1.0)
    x = nine.normalise(x)
    nine.store9(OUT + at, x, mask, CHANNELS)
    nine.store9(GX + at, nine.normalise_gradient(x, inverse, g), mask, CHANNELS)


@triton.jit
def product_both_ways(Y, M, G, OUT, GY, GM, factor, REFLECTIONS: tl.constexpr, CHANNELS: tl.constexpr):
    at, mask = _block(CHANNELS)
    y, m = nine.load9(Y + at, mask, CHANNELS), nine.load9(M + at, mask, CHANNELS)
    p = nine.message_product(y, m, factor, REFLECTIONS)
    g = nine.load9(G + at, mask, CHANNELS)
    gy, gm = nine.message_product_gradient(y, m, g, factor, REFLECTIONS)
    nine.store9(OUT + at, p, mask, CHANNELS)
    nine.store9(GY + at, gy, mask, CHANNELS)
    nine.store9(GM + at, gm, mask, CHANNELS)


@triton.jit
def activate_both_ways(Z, OUT, SLOPE, NAME: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    z = tl.load(Z + i)
    tl.store(OUT + i, activate(z, NAME))
    tl.store(SLOPE + i, slope(z, NAME))


def random_tensors(count):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, 9, CHANNELS, generator=generator).to(DEVICE) for _ in range(count)]


def assert_adjoint(function, inputs, gradient, found_value, found_gradients):
    exact = [x.double().requires_grad_() for x in inputs]
    value = function(*exact)
    wanted = torch.autograd.grad(value, exact, gradient.double())
    torch.testing.assert_close(found_value.double(), value, atol=1e-5, rtol=1e-5)
    for found, expected in zip(found_gradients, wanted, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


def test_the_square_of_a_tensor_and_its_gradient():
    x, g, out, gx = random_tensors(4)
    square_both_ways[(1,)](x, g, out, gx, CHANNELS)
    assert_adjoint(lambda x: tensors.product(x, x), [x], g, out, [gx])


def test_the_normalised_tensor_and_its_gradient():
    x, g, out, gx = random_tensors(4)
    normalise_both_ways[(1,)](x, g, out, gx, CHANNELS)
    assert_adjoint(ops.normalise, [x], g, out, [gx])


@pytest.mark.parametrize("reflections", [True, False])
def test_the_message_product_and_its_gradients(reflections):
    y, m, g, out, gy, gm = random_tensors(6)
    product_both_ways[(1,)](y, m, g, out, gy, gm, 0.9, reflections, CHANNELS)
    factor = torch.full((1, 1, 1), 0.9, dtype=torch.float64, device=DEVICE)
    assert_adjoint(lambda y, m: ops.product(y, m, factor, reflections=reflections), [y, m], g, out, [gy, gm])


ROUNDING = 1e-6  # what products may differ by, relative to the largest: rounding of sums
CUT = dict(ROWS=64, COLUMNS=16, STEP=16, num_warps=4)


def random(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def test_products_with_one_matrix_a_part():
    x, w = random(70, 9, 32), random(3, 32, 32, seed=2)
    matrices, out = tf32_product.Split.of(w), torch.full_like(x, torch.nan)
    tf32_product.multiply_parts[(9 * 2 * 2,)](x, matrices.big, matrices.small, out, 70, CHANNELS=32, **CUT)
    part = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2], device=DEVICE)
    wanted = torch.einsum("nkc,kdc->nkd", x.double(), w.double()[part])
    assert (out - wanted).abs().max() < ROUNDING * wanted.abs().max()


def test_products_may_replace_what_they_read():
    x, w = random(70, 9, 32), random(3, 32, 32, seed=2)
    matrices, out, place = tf32_product.Split.of(w), torch.full_like(x, torch.nan), x.clone()
    for given, found in ((x, out), (place, place)):
        tf32_product.multiply_parts[(9 * 2,)](
            given, matrices.big, matrices.small, found, 70, CHANNELS=32, ROWS=64, COLUMNS=32, STEP=16, num_warps=4
        )
    assert torch.equal(place, out)


@pytest.mark.parametrize("after", ["bias", "scale", "slope"])
def test_products_and_what_follows_them(after):
    x, w, z = random(70, 48), random(32, 48, seed=2), random(70, 32, seed=3)
    row = random(32, seed=4)
    matrix, out = tf32_product.Split.of(w), z.clone()
    tf32_product.multiply[(2, 2)](
        x, matrix.big, matrix.small, out if after == "slope" else row, out, 70, INNER=48, WIDTH=32,
        ACTIVATION="silu", AFTER=after, **CUT,
    )  # fmt: skip
    act, slopes = torch.nn.functional.silu, ops.slope(z.double())
    x, w = x.double(), w.double()
    wanted = {"bias": act(x) @ w.T + row, "scale": (x @ w.T) * row, "slope": (x @ w.T) * slopes}[after]
    assert (out - wanted).abs().max() < ROUNDING * wanted.abs().max()


@pytest.mark.parametrize("name", settings.ACTIVATIONS)
def test_activations_and_their_slopes(name):
    z = torch.cat([torch.linspace(-30, 30, 255), torch.tensor([0.0])]).to(DEVICE)
    out, found = torch.empty_like(z), torch.empty_like(z)
    activate_both_ways[(1,)](z, out, found, name, len(z))
    torch.testing.assert_close(out.double(), ACTIVATIONS[name]()(z.double()), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.double(), ops.slope(z.double(), name), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("counts", [[5], [0, 3, 0, 0, 2], [1, 40, 0, 7], [3000, 1500]], ids=str)
def test_sums_over_systems_of_any_sizes(counts):
    total = sum(counts)
    system = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(DEVICE)
    generator = torch.Generator().manual_seed(0)
    energies = torch.randn(total, dtype=torch.float64, generator=generator).to(DEVICE)
    virials = torch.randn(total, 3, 3, generator=generator).to(DEVICE)
    shift = torch.tensor(0.7, dtype=torch.float64, device=DEVICE)
    wanted = torch.stack([part.sum() + 0.7 * bool(len(part)) for part in energies.split(counts)])
    virial = torch.stack([part.double().sum(0) for part in virials.split(counts)])
    energy, strain = torch.empty_like(wanted), torch.empty_like(virial)
    cell, stress = torch.randn(len(counts), 3, 3, generator=generator).to(DEVICE), torch.empty_like(virial)
    cell[0] = 0
    sum_systems[(len(counts),)](
        system, energies, shift, virials, energy, strain, cell, stress, total, VIRIAL=True, BLOCK=64, SEARCH=64
    )
    torch.testing.assert_close(energy, wanted)
    volumes = torch.linalg.det(cell.double()).abs()[1:, None, None]
    torch.testing.assert_close(stress[1:], ((virial + virial.mT) / 2)[1:] / volumes)
    assert stress[0].isnan().all()
    torch.testing.assert_close(strain, (virial + virial.mT) / 2)
    torch.testing.assert_close(energies.sum(), wanted.sum())
