"""QET on pairs: the reference's numbers, to the gradient of a loss on forces."""

import pytest
import torch
from pair_lists import CUTOFF, listed, systems

from torchmdx import Batch, Potential
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.evaluation.derivatives import differentiate
from torchmdx.models.qet import QETConfig

CONFIGS = {
    "environment": dict(),
    "element": dict(hardness="element", num_layers=1),
    "messages of own tensors": dict(messages="target", self_message=False),
}


@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("capacity", [None, 700])
def test_results_and_gradients_of_a_loss_are_those_of_the_reference(config, capacity):
    torch.manual_seed(0)
    potential = Potential(QETConfig(num_channels=6, num_radial=5, cutoff=CUTOFF, **config)).double()
    potential.scale.fill_(30.0)
    batch = Batch.from_systems(systems())
    edges, reverse = listed(batch, capacity)
    ours = differentiate_pairwise(potential, batch, edges, reverse, stress=True)
    plain = differentiate(potential, batch, edges, forces=True, stress=True, create_graph=True)
    for name in ("energy", "energies", "forces", "charges"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(ours.stress, plain.stress, rtol=1e-10, atol=1e-12, equal_nan=True)
    target = torch.randn_like(ours.forces)

    def gradients(result):
        loss = ((result.forces - target) ** 2).sum() + (result.energy**2).sum() + (result.charges**3).sum()
        trained = [one for one in potential.parameters() if one.requires_grad]
        return torch.autograd.grad(loss, trained, materialize_grads=True, allow_unused=True)

    for found, expected in zip(gradients(ours), gradients(plain), strict=True):
        largest = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * largest + 1e-300)
