"""The kernels of uncertainties on a GPU: values of the formula, for one system and several."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels

pytest.importorskip("triton")

SYSTEMS = {"one": [37], "alone": [1], "several": [3, 0, 20, 1, 16]}


@needs_kernels
@pytest.mark.parametrize("size", [11, 65])
@pytest.mark.parametrize("name", SYSTEMS)
def test_they_are_those_of_the_formula(name, size):
    from torchmdx.engines.gpu.uncertainty import UncertaintyKernels

    counts = torch.tensor(SYSTEMS[name])
    index = torch.arange(len(counts)).repeat_interleave(counts)
    generator = torch.Generator().manual_seed(size)
    rows, root = (
        torch.randn(count, size, generator=generator, dtype=torch.float64) for count in (int(counts.sum()), size)
    )
    new = dict(dtype=torch.float64, device=DEVICE)
    of_systems, of_atoms = torch.full((len(counts),), torch.nan, **new), torch.full((len(rows),), torch.nan, **new)
    inputs = torch.zeros(len(rows), size, device=DEVICE)
    kernels = UncertaintyKernels(root, inputs, of_systems, of_atoms)
    for scale in (1.0, 3.0):  # memory is used again
        products = scale * rows @ root
        sums = torch.zeros(len(counts), size, dtype=torch.float64).index_add(0, index, products)
        inputs.copy_(scale * rows)
        kernels.run(index.to(DEVICE))
        torch.testing.assert_close(of_atoms.cpu(), products.norm(dim=-1), rtol=1e-6, atol=0)
        torch.testing.assert_close(of_systems.cpu(), sums.norm(dim=-1), rtol=1e-6, atol=0)
