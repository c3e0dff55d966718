"""Products of linear maps on tensor cores against float64, and the network that uses them."""

import copy

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from pair_lists import CUTOFF, listed, systems

from torchmdx import Batch, Potential, TensorNetConfig
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.models.tensors import PARTS

SHAPES = [(5, 20, 33), (70, 32, 64), (200, 48, 1)]
PART_OF = [k for k, part in enumerate(PARTS) for _ in range(part.start, part.stop)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.float().to(DEVICE)


def require_exact(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert float((found.double() - wanted).norm() / wanted.norm()) < 6e-7


@needs_kernels
@pytest.mark.parametrize(("rows", "inner", "outer"), SHAPES)
@pytest.mark.parametrize("least", [10**9, 1])
def test_products_of_one_matrix(monkeypatch, rows, inner, outer, least):
    from torchmdx.engines.pairs.kernels import linear

    monkeypatch.setattr(linear, "MANY_ROWS", least)
    monkeypatch.setattr(linear, "SOME_ROWS", 100)
    x, w, b, g = random(rows, inner), random(outer, inner, seed=1), random(outer, seed=2), random(rows, outer, seed=3)
    require_exact(linear.multiply(x, w), x.double() @ w.double().T)
    require_exact(linear.multiply(x, w, b), x.double() @ w.double().T + b.double())
    require_exact(linear.multiply(g, w, back=True), g.double() @ w.double())
    products, total = linear.in_weights(g, x, total=True)
    require_exact(products, g.double().T @ x.double())
    require_exact(total, g.double().sum(0))
    require_exact(linear.in_weights(g, x)[0], g.double().T @ x.double())
    assert linear.in_weights(g, x)[1] is None


@needs_kernels
@pytest.mark.parametrize("atoms", [3, 130])
def test_products_of_nine_components(atoms):
    from torchmdx.engines.pairs.kernels import linear

    x, w, g = random(atoms, 9, 20), random(3, 40, 20, seed=1), random(atoms, 9, 40, seed=2)
    each = w.double()[PART_OF]
    require_exact(linear.multiply(x, w), torch.einsum("nmi,moi->nmo", x.double(), each))
    require_exact(linear.multiply(g, w, back=True), torch.einsum("nmo,moi->nmi", g.double(), each))
    by_component = torch.einsum("nmo,nmi->moi", g.double(), x.double())
    wanted = torch.stack([by_component[part].sum(0) for part in PARTS])
    require_exact(linear.in_weights(g, x)[0], wanted)


@needs_kernels
def test_errors_of_products_have_either_sign():
    """A network multiplies its errors by dozens of maps: those of one sign would add up.

    Cut off and not restored, products of this sum on an H200 are 4e-7 too small, and restored ones 7e-8.
    """
    from torchmdx.engines.pairs.kernels import linear

    x, w = random(512, 128).abs() + 0.1, random(128, 128, seed=1).abs() + 0.1
    for found, wanted in (
        (linear.multiply(x, w), x.double() @ w.double().T),
        (linear.in_weights(x, x)[0], x.double().T @ x.double()),
    ):
        assert abs(float((found.double() / wanted - 1).mean())) < 1e-7


@needs_kernels
def test_no_rows():
    from torchmdx.engines.pairs.kernels import linear

    assert linear.multiply(random(0, 4), random(3, 4)).shape == (0, 3)
    products, total = linear.in_weights(random(0, 3), random(0, 4), total=True)
    assert (products.tolist(), total.tolist()) == ([[0.0] * 4] * 3, [0.0] * 3)


@needs_kernels
def test_gradients_of_a_loss_on_forces(monkeypatch):
    """Of a float32 network whose linear maps are these kernels, against float64 without them."""
    torch.manual_seed(0)
    exact = Potential(TensorNetConfig(num_channels=16, num_radial=16, num_layers=1, cutoff=CUTOFF)).double()
    ours = copy.deepcopy(exact).float().to(DEVICE)
    batch = Batch.from_systems(systems())
    wanted = gradients(exact, batch)
    used = []
    monkeypatch.setattr("torchmdx.engines.pairs.filters.LEAST_WIDTH", 4)
    if DEVICE == "cpu":
        from torchmdx.engines.pairs.kernels import linear

        def chosen(*tensors):
            used.append(tensors[0].shape)
            return linear if tensors[0].dtype == torch.float32 else None

        for module in ("products", "filters"):
            monkeypatch.setattr(f"torchmdx.engines.pairs.{module}.exact_products_of", chosen)
        monkeypatch.setattr("torchmdx.engines.pairs.products._exact_products", lambda: linear)
    found = gradients(ours, batch.to(DEVICE, torch.float32))
    assert used or DEVICE != "cpu"
    for one, other in zip(found, wanted, strict=True):
        assert float((one.double().cpu() - other).norm()) < 1e-5 * float(other.norm()) + 1e-7


def gradients(potential, batch):
    edges, reverse = listed(batch)
    result = differentiate_pairwise(potential, batch, edges, reverse)
    loss = (result.energy.double() ** 2).sum() + (result.forces.double() ** 2).sum()
    return torch.autograd.grad(loss, [p for p in potential.parameters() if p.requires_grad])


@needs_kernels
def test_products_with_their_activation():
    from torchmdx.engines.pairs.kernels import linear

    x, w, b = random(20, 24), random(40, 24, seed=1), random(40, seed=2)
    plain, activated = linear.multiply_silu(x, w, b)
    assert torch.equal(plain, linear.multiply(x, w, b))
    require_exact(activated, torch.nn.functional.silu(plain.double()))


@needs_kernels
def test_slopes_of_an_activation_are_added_to_another_gradient():
    from torchmdx.engines.pairs.kernels import silu

    x, g, s = random(30, 7).double(), random(30, 7, seed=1).double(), random(30, 7, seed=2).double()
    z = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.nn.functional.silu(z).sum(), z)
    torch.testing.assert_close(silu.scaled_derivative(1, x, g, s), slope * g + s)
    torch.testing.assert_close(silu.scaled_derivative(1, x, g), slope * g)
