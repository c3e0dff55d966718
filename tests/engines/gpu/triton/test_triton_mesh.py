"""The kernels of particle mesh Ewald against the sum in torch."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from test_triton_reciprocal import batch_of, charges_of, flag, prior_of, run

from torchmdx.engines.reciprocal import differentiate_reciprocal

mesh = pytest.importorskip("torchmdx.engines.gpu.triton.mesh")

pytestmark = needs_kernels


@pytest.mark.parametrize(
    ("pbcs", "accuracy", "dtype"),
    [([True], 1e-3, torch.float32), ([True, False, True], 1e-2, torch.float64)],
    ids=["one", "several"],
)
def test_it_is_the_sum_in_torch(monkeypatch, pbcs, accuracy, dtype):
    if DEVICE == "cpu":  # fewer programs are faster under the interpreter
        monkeypatch.setattr(mesh, "GATHERED", 64)
    prior = prior_of(weights=(1.0, 0.5), periodic="pme", accuracy=accuracy)
    batch = batch_of(*pbcs, atoms=20, dtype=dtype)
    charges = charges_of(batch)
    wanted = differentiate_reciprocal(prior, batch, charges.double(), flag(), stress=True)
    energies, forces, pull, virial, overflow = run(prior, batch, charges)
    assert prior.kept.latest.mesh is not None
    scale = wanted.slope.abs().max()
    torch.testing.assert_close(energies, wanted.energies, rtol=1e-5, atol=1e-5 * float(wanted.energies.abs().max()))
    torch.testing.assert_close(forces.double(), -wanted.slope, rtol=0, atol=3e-6 * float(scale) + 1e-6)
    torch.testing.assert_close(pull.double(), wanted.pull, rtol=0, atol=3e-6 * float(wanted.pull.abs().max()))
    torch.testing.assert_close(virial, wanted.virial, rtol=0, atol=1e-5 * float(wanted.virial.abs().max()))
    assert not overflow


def test_energies_alone_and_a_cell_that_does_not_fit(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(mesh, "GATHERED", 64)
    prior, batch = prior_of(periodic="pme", accuracy=1e-2), batch_of(True, atoms=20)
    charges = charges_of(batch)
    vectors = prior.vectors_for(batch, charges, flag())
    energies, forces, pull, _, overflow = run(prior, batch, charges, forces=False)
    wanted = differentiate_reciprocal(prior, batch, charges.double(), flag())
    torch.testing.assert_close(energies, wanted.energies, rtol=1e-5, atol=1e-5 * float(wanted.energies.abs().max()))
    assert not forces.any()
    assert not pull.any()
    assert not overflow
    batch.cell.mul_(1.05)
    assert not vectors.fits(batch)
