"""TensorNet2's backward pass with one program per atom: gradients of charges and edges are those of other kernels."""

from charged_buffers import batch_of, buffers_of
from interpreter import DEVICE, needs_kernels

from torchmdx.engines.gpu.tensornet2 import FastTensorNet2


@needs_kernels
def test_gradients_are_those_of_the_other_kernels(make_potential, ethanol):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=1, num_charges=5).to(DEVICE)
    fast, batch = FastTensorNet2(potential), batch_of(ethanol)
    found, wanted = (gradients(buffers_of(fast, batch, potential.cutoff, rows=rows)) for rows in (True, False))
    for name, value in wanted.items():
        assert (found[name] - value).norm() < 1e-5 * value.norm(), name


def gradients(buffers):
    gradient, charged = buffers.scratch.gradient, buffers.scratch.charged
    pull = gradient.pull.sum(0)
    each = dict(charges=charged.charges_gradient, z1=charged.z1[0], half=gradient.half, pull=pull)
    return {name: value.double().clone() for name, value in each.items()}
