"""Functions of the tensors of one atom, by the algebra of the model, and their derivatives."""

import torch
from interpreter import DEVICE

from torchmdx.engines import ops
from torchmdx.engines.pairs import atom_functions

ATOMS, CHANNELS = 3, 5
FUNCTIONS = {"normalised": 1, "product": 2, "updated": 2}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(DEVICE).requires_grad_()


def evaluated(name: str, inputs: list[torch.Tensor], factor: torch.Tensor | None) -> torch.Tensor:
    return getattr(atom_functions, name)(*inputs, *([] if name == "normalised" else [factor]))


def by_matrices(name: str, inputs: list[torch.Tensor], factor: torch.Tensor | None) -> torch.Tensor:
    """By the operations of the reference model."""
    f = torch.ones((), dtype=torch.float64, device=DEVICE) if factor is None else factor[:, :, None]
    if name == "normalised":
        return ops.normalise(*inputs)
    return ops.product(*inputs, f, reflections=True) if name == "product" else ops.update(*inputs, f)


def derivatives(function, inputs: list[torch.Tensor], order: int) -> list[torch.Tensor]:
    """The value, then gradients of sums over the last gradients with fixed weights, up to this order."""
    found = [function(inputs)]
    last = [found[0]]
    for number in range(order):
        if not any(x.requires_grad for x in last):  # the second derivatives of products are constants
            break
        total = sum((x * random(*x.shape, seed=10 + number).detach()).sum() for x in last if x.requires_grad)
        more = number + 1 < order
        last = list(torch.autograd.grad(total, inputs, create_graph=more, allow_unused=True, materialize_grads=True))
        found += last
    return found
